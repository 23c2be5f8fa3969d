// The selective scan of Mamba (S6), forward and backward, from and to a given state.
//
//   delta = softplus(raw + bias)    h_t = exp(delta A) h_{t-1} + delta u_t B_t    y_t = (C_t h_t + D u_t) silu(z_t)
//
// u, delta, z, y are (batch, length, channels), B and C (batch, length, N), float32, the last dimension contiguous, any
// stride between rows, batches `length` rows apart. A (N, channels) is negative, states are (batch, N, channels).
// One lane is one channel: no sum runs across lanes but those of dB and dC. The forward pass keeps the state before
// every STEPS steps ("starts"); the backward pass recomputes what lies between.
#pragma once
#include "mamba.h"

struct ScanArguments {
  const float *u, *delta, *A, *B, *C;
  const float *D, *z, *delta_bias, *initial_state;  // each may be null
  int64_t u_stride, delta_stride, z_stride, B_stride, C_stride;
  int64_t batch, length, channels;
  int32_t states, threads;
};

struct ScanOutputs {
  float *y, *last_state;
  float* starts;  // (batch, tiles, N, channels), or null when no backward pass follows
};

struct ScanGradients {
  const float *y, *last_state;  // incoming, (batch, length, channels) and (batch, N, channels); each may be null
  const float* starts;
  float *u, *delta, *A, *B, *C;               // A (N, channels)
  float *D, *z, *delta_bias, *initial_state;  // null where the input is
};

static inline int64_t channel_blocks(const ScanArguments& a) { return (a.channels + LANES - 1) / LANES; }
static inline int64_t time_tiles(const ScanArguments& a) { return (a.length + STEPS - 1) / STEPS; }
static inline int block_width(const ScanArguments& a, int64_t block) {
  return (int)std::min<int64_t>(LANES, a.channels - block * LANES);
}

// The inputs of one tile of STEPS steps by LANES channels.
template <int N>
struct ScanTile {
  const ScanArguments& a;
  const int64_t b, channel;
  const int width;
  alignas(64) float A[N][LANES] = {}, D[LANES] = {}, bias[LANES] = {};
  alignas(64) Tile u = {}, delta = {};
  float fastest = 0.f;  // the least of A
  int64_t row = 0;
  int T = 0;

  ScanTile(const ScanArguments& arguments, int64_t batch, int64_t block)
      : a(arguments), b(batch), channel(block * LANES), width(block_width(a, block)) {
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < width; ++i) {
        A[n][i] = LOG2_E * a.A[n * a.channels + channel + i];
        fastest = std::min(fastest, A[n][i]);
      }
    load_lanes(D, a.D ? a.D + channel : nullptr, width);
    load_lanes(bias, a.delta_bias ? a.delta_bias + channel : nullptr, width);
  }

  // Loads the steps from `start` on; delta before its softplus.
  void read(int64_t start) {
    row = b * a.length + start;
    T = (int)std::min<int64_t>(STEPS, a.length - start);
    load(u, a.u + row * a.u_stride + channel, a.u_stride, T, width);
    load(delta, a.delta + row * a.delta_stride + channel, a.delta_stride, T, width);
    for (int t = 0; t < T; ++t) SIMD for (int i = 0; i < LANES; ++i) delta[t][i] += bias[i];
  }
  const float* B(int t) const { return a.B + (row + t) * a.B_stride; }
  const float* C(int t) const { return a.C + (row + t) * a.C_stride; }
  // Place of this block's lanes in an array (rows, channels) without gaps, or in states (blocks of states, N, channels).
  int64_t lanes() const { return row * a.channels + channel; }
  int64_t state(int64_t index, int n) const { return (index * N + n) * a.channels + channel; }
};

// Calls kernel<N> for the N at hand; returns 1 when there is none, 2 when A is not negative everywhere.
#define FOR_STATES(kernel, a, ...)                                                                       \
  for (int64_t i = 0; i < (a)->states * (a)->channels; ++i)                                              \
    if (!((a)->A[i] <= 0.f) && (a)->A[i] == (a)->A[i]) return 2;                                         \
  switch ((a)->states) {                                                                                 \
    case 4: kernel<4>(*(a), __VA_ARGS__); return 0;                                                      \
    case 8: kernel<8>(*(a), __VA_ARGS__); return 0;                                                      \
    case 16: kernel<16>(*(a), __VA_ARGS__); return 0;                                                    \
    case 32: kernel<32>(*(a), __VA_ARGS__); return 0;                                                    \
    case 64: kernel<64>(*(a), __VA_ARGS__); return 0;                                                    \
    default: return 1;                                                                                   \
  }
