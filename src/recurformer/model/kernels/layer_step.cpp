// One token's way through a decoder layer whose heads all have windows: the steps of its parts, one after the other.
#include "layer.h"

// Those of the parts. What one part hands to the next has no pointer yet.
struct LayerArguments {
  NormArguments norm;
  NormArguments head_norms[2];  // of queries and keys; without weights where a family has none
  ProductsArguments projecting, mixing;
  GatedArguments feed;
  WindowStepArguments attention;
  Product projections[3], output;  // queries, keys, values
};

// Of one token: x and y are (batch, hidden).
struct LayerToken {
  const void *x, *cos, *sin;
  void* y;
  int64_t* seen;
};

extern "C" {
// Returns 1 if a token has no slot, and has done nothing then.
int layer_step(const LayerArguments* given, const LayerToken* token, const WindowSlots* windows,
               const WindowGroup* groups) {
  LayerArguments a = *given;  // several threads may hand in the same one
  const int64_t heads = a.attention.heads * a.attention.dim, hidden = a.norm.dim;
  int64_t width = 2 * hidden + heads;
  for (const Product& p : a.projections) width += p.outputs;
  const int64_t rows = a.norm.rows * (a.norm.half ? 2 : 4);
  std::vector<uint8_t> memory(rows * width);
  uint8_t* free = memory.data();
  const auto take = [&](int64_t features) {
    void* start = free;
    free += rows * features;
    return start;
  };
  a.norm.x = a.feed.residual = token->x;
  a.projecting.x = a.norm.y = take(hidden);
  for (Product& p : a.projections) p.y = take(p.outputs);
  a.attention.queries = a.projections[0].y;
  a.attention.keys = a.projections[1].y;
  a.attention.values = a.projections[2].y;
  a.attention.cos = token->cos;
  a.attention.sin = token->sin;
  a.attention.seen = token->seen;
  a.mixing.x = a.attention.y = take(heads);
  a.feed.x = a.output.y = take(hidden);
  a.feed.y = token->y;
  if (window_full(&a.attention, windows, groups)) return 1;
  rms_norm(&a.norm);
  products(&a.projecting, a.projections);
  for (int i = 0; i < 2; ++i)
    if (a.head_norms[i].weight) {
      a.head_norms[i].x = a.head_norms[i].y = a.projections[i].y;
      rms_norm(&a.head_norms[i]);
    }
  window_step(&a.attention, windows, groups);
  products(&a.mixing, &a.output);
  return gated_products(&a.feed);
}
}
