// What the steps of a decoder layer are given.
#pragma once
#include "mamba.h"

// Rows of any type as floats, copied unless they are floats already.
template <class T>
struct Wide {
  std::vector<float> copy;
  Rows rows;
  Wide(const T* x, int64_t stride, int64_t batch, int64_t width) : copy(batch * width), rows{copy.data(), width} {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < width; ++i) copy[b * width + i] = wide(x[b * stride + i]);
  }
};
template <>
struct Wide<float> {
  Rows rows;
  Wide(const float* x, int64_t stride, int64_t, int64_t) : rows{x, stride} {}
};

struct Product {
  const void *weight, *bias;  // (outputs, features), (outputs) or null
  void* y;                    // (batch, outputs)
  int64_t outputs;
};

struct ProductsArguments {
  const void* x;  // (batch, features)
  int64_t x_stride, batch, features, count;
  int32_t half, threads;  // half: all numbers are bfloat16
};

struct NormArguments {
  const void *x, *weight;  // (rows, dim), (dim)
  void* y;                 // (rows, dim)
  int64_t rows, dim;
  float epsilon, offset;  // offset: added to the weight
  int32_t half;
};

struct GatedArguments {
  const void *x, *gate, *up, *down;  // (batch, features), (inner, features) twice, (outputs, inner)
  const void *residual, *norm;       // (batch, features) and (features), or null: the part between residual sums
  void* y;                           // (batch, outputs)
  int64_t x_stride, residual_stride, batch, features, inner, outputs;
  float epsilon, offset;  // of the norm
  int32_t half, threads, tanh;  // tanh: the activation is GELU by its approximation with tanh, else SiLU
};

struct WindowSlots {
  uint8_t *keys, *values;   // of the first slot: rows of numbers or packed ones
  int64_t row, slot, group; // bytes from one of the batch's rows, from one slot, from one KV head to the next
  int64_t held, tokens, bits;  // tokens: of the ring, without sinks
  int64_t at(int64_t b, int64_t s, int64_t g) const { return b * row + s * slot + g * group; }
};

struct WindowGroup {
  int64_t window, place, first_query, queries;  // the KV head's window, its place in there, its query heads
  int64_t sorted, sorted_query;  // its place and that of its first query head in the order of windows
};

struct WindowStepArguments {
  const void *queries, *keys, *values;  // (batch, length, heads, dim), (batch, length, KV heads, dim) twice; not rotated
  const void *cos, *sin, *center;       // (batch, length, turned) twice or null, (KV heads with one, dim) or null
  void* y;        // of a step: outputs (batch, heads, dim); of a beginning: rotated queries (batch, length, heads, dim)
  void* entries;  // of a beginning: keys and values as they are kept (batch, length, KV heads, 2 dim)
  int64_t* seen;  // of a step: tokens before it, (batch); one more afterwards
  int64_t queries_stride, keys_stride, values_stride, cos_stride, sin_stride;  // of a batch's rows
  int64_t queries_step, keys_step, values_step;                                // of tokens
  int64_t batch, length, heads, groups, dim, turned, sinks, centered;  // centered: the first KV head with a center
  int32_t threads, half;  // half: all numbers are bfloat16, and so are unpacked slots
};

struct BlockArguments {  // of a Mamba block; all but A, D and state may be bfloat16
  const void *x, *in_proj;                  // (batch, features), (2 channels, features)
  const void *weight, *bias;                // of the convolution: (channels, taps), (channels)
  const void *selection, *selection_bias;   // (steps + 2 N, channels), (steps + 2 N) or null
  const void *step_weight, *step_bias;      // (channels, steps), (channels); null: the selection gives delta itself
  void* window;                             // (batch, channels, taps)
  const float *A, *D;                       // (channels, N), (channels)
  float* state;                             // (batch, channels, N)
  void* y;                                  // (batch, channels)
  int64_t x_stride, batch, features, channels, steps, states, taps;
  int32_t threads, half;
};

extern "C" {
int block_step(const BlockArguments* a);
int products(const ProductsArguments* a, const Product* all);
int rms_norm(const NormArguments* a);
int gated_products(const GatedArguments* a);
// Whether a token of a step has no slot; a step then does nothing and returns 1.
int window_full(const WindowStepArguments* a, const WindowSlots* windows, const WindowGroup* groups);
int window_step(const WindowStepArguments* a, const WindowSlots* windows, const WindowGroup* groups);
}
