// The forward pass of scan.h.
#include "scan.h"

// Steps through a tile: u becomes y, h the state behind the tile. `exp2` need not take more than the tile holds.
template <int N, class Exp2>
static inline void advance(ScanTile<N>& s, const float (*gate)[LANES], float (*h)[LANES], Exp2 exp2) {
  for (int t = 0; t < s.T; ++t) {
    const float *B = s.B(t), *C = s.C(t);
    alignas(64) float y[LANES], drive[LANES], delta[LANES];
    SIMD for (int i = 0; i < LANES; ++i) {
      delta[i] = s.delta[t][i];
      y[i] = s.D[i] * s.u[t][i];
      drive[i] = delta[i] * s.u[t][i];
    }
    for (int n = 0; n < N; ++n) {
      const float write = B[n], read = C[n];
      SIMD for (int i = 0; i < LANES; ++i) {
        const float state = exp2(delta[i] * s.A[n][i]) * h[n][i] + drive[i] * write;
        h[n][i] = state;
        y[i] += state * read;
      }
    }
    if (gate) {
      SIMD for (int i = 0; i < LANES; ++i) s.u[t][i] = y[i] * gate[t][i];
    } else {
      SIMD for (int i = 0; i < LANES; ++i) s.u[t][i] = y[i];
    }
  }
}

template <int N>
static void forward(const ScanArguments& a, const ScanOutputs& out) {
  const int64_t blocks = channel_blocks(a), tiles = time_tiles(a);
  in_parallel(a.threads, a.batch * blocks, [&](int, int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      ScanTile<N> s(a, piece / blocks, piece % blocks);
      alignas(64) float h[N][LANES] = {};
      alignas(64) Tile gate = {};
      if (a.initial_state)
        for (int n = 0; n < N; ++n) load_lanes(h[n], a.initial_state + s.state(s.b, n), s.width);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        if (out.starts)
          for (int n = 0; n < N; ++n) store_lanes(out.starts + s.state(s.b * tiles + tile, n), h[n], s.width);
        s.read(tile * STEPS);
        float *raw = &s.delta[0][0], longest = 0.f;
        SIMD for (int i = 0; i < s.T * LANES; ++i) raw[i] = softplus(raw[i]);
        for (int t = 0; t < s.T; ++t)
#pragma omp simd reduction(max : longest)
          for (int i = 0; i < s.width; ++i) longest = std::max(longest, s.delta[t][i]);
        if (a.z) {
          load(gate, a.z + s.row * a.z_stride + s.channel, a.z_stride, s.T, s.width);
          float* z = &gate[0][0];
          SIMD for (int i = 0; i < s.T * LANES; ++i) z[i] *= sigmoid(z[i]);
        }
        if (longest * s.fastest >= SMALLEST_EXPONENT)  // a seventh faster
          advance(s, a.z ? gate : nullptr, h, [](float x) { return exp2_normal(x); });
        else
          advance(s, a.z ? gate : nullptr, h, [](float x) { return exp2_negative(x); });
        store(out.y + s.lanes(), s.u, a.channels, s.T, s.width);
      }
      for (int n = 0; n < N; ++n) store_lanes(out.last_state + s.state(s.b, n), h[n], s.width);
    }
  });
}

extern "C" int scan_forward(const ScanArguments* a, const ScanOutputs* out) { FOR_STATES(forward, a, *out) }
