// One token's way through a decoder layer whose heads attend to all tokens or to windows, or have a Mamba block in their
// place: the steps of its parts, one after the other.
#include "layer.h"

// Those of the parts. What one part hands to the next has no pointer yet.
struct LayerArguments {
  NormArguments norm;
  NormArguments head_norms[2];  // of queries and keys; without weights where a family has none
  ProductsArguments projecting, reading, mixing;
  GatedArguments feed;
  WindowStepArguments attention;
  Product projections[3], readout, output;  // projections: queries and keys, where heads attend, and values
  BlockArguments block;                     // without weights where no heads have one; readout: likewise, or fused
  const int64_t* reads;                     // the KV heads whose values the block is given
};

// Of one token: x and y are (batch, hidden).
struct LayerToken {
  const void *x, *cos, *sin;
  void *y, *window;  // window, state: of the Mamba block
  float* state;
  int64_t* seen;
};

extern "C" {
// Returns 1 if a token has no slot, and has done nothing then.
int layer_step(const LayerArguments* given, const LayerToken* token, const WindowSlots* windows,
               const WindowGroup* groups) {
  LayerArguments a = *given;  // several threads may hand in the same one
  const bool attends = a.attention.groups > 0, mixes = a.block.in_proj;
  const int64_t batch = a.norm.rows, size = a.norm.half ? 2 : 4, hidden = a.norm.dim, dim = a.attention.dim;
  const int64_t heads = a.attention.heads * dim, channels = a.block.channels;
  int64_t width = 2 * hidden + heads + a.mixing.features + a.block.features + channels + a.readout.outputs;
  for (const Product& p : a.projections) width += p.outputs;
  std::vector<uint8_t> memory(batch * size * width);
  uint8_t* free = memory.data();
  const auto take = [&](int64_t features) {
    uint8_t* start = free;
    free += batch * size * features;
    return start;
  };
  // Copies a part of every row, both places counted in features.
  const auto copy = [&](const void* from, int64_t stride, int64_t at, void* to, int64_t to_stride, int64_t to_at,
                        int64_t features) {
    for (int64_t b = 0; b < batch; ++b)
      std::memcpy((uint8_t*)to + size * (b * to_stride + to_at), (const uint8_t*)from + size * (b * stride + at),
                  size * features);
  };
  Product *queries = a.projections, *keys = queries + 1, *values = queries + 2;
  a.norm.x = a.feed.residual = token->x;
  a.projecting.x = a.norm.y = take(hidden);
  for (Product& p : a.projections) p.y = take(p.outputs);
  a.attention.queries = queries->y;
  a.attention.keys = keys->y;
  a.attention.values = values->y;
  a.attention.cos = token->cos;
  a.attention.sin = token->sin;
  a.attention.seen = token->seen;
  a.mixing.x = a.attention.y = take(heads);
  a.feed.x = a.output.y = take(hidden);
  a.feed.y = token->y;
  if (attends && window_full(&a.attention, windows, groups)) return 1;
  rms_norm(&a.norm);
  products(&a.projecting, attends ? queries : values);
  for (int i = 0; i < 2; ++i)
    if (a.head_norms[i].weight) {
      a.head_norms[i].x = a.head_norms[i].y = a.projections[i].y;
      rms_norm(&a.head_norms[i]);
    }
  if (attends) window_step(&a.attention, windows, groups);
  if (mixes) {
    uint8_t *read = take(a.block.features), *mixed = take(a.mixing.features);
    for (int64_t at = 0; at < a.block.features; at += dim)
      copy(values->y, values->outputs, a.reads[at / dim] * dim, read, a.block.features, at, dim);
    a.block.x = read;
    a.block.window = token->window;
    a.block.state = token->state;
    a.reading.x = a.block.y = take(channels);
    block_step(&a.block);
    const void* replaced = a.block.y;
    if (a.readout.weight) {
      replaced = a.readout.y = take(a.readout.outputs);
      products(&a.reading, &a.readout);
    }
    const int64_t rest = a.mixing.features - heads;
    copy(a.attention.y, heads, 0, mixed, a.mixing.features, 0, heads);
    copy(replaced, rest, 0, mixed, a.mixing.features, heads, rest);
    a.mixing.x = mixed;
  }
  products(&a.mixing, &a.output);
  return gated_products(&a.feed);
}
}
