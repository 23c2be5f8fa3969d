// The backward pass of scan.h, which recomputes the states between two that the forward pass kept.
#include "scan.h"

// What one thread needs for a tile: states, decays, and the sums over channels of dB and dC before they cross lanes.
template <int N>
struct Workspace {
  using Steps = float[STEPS][N][LANES];
  std::vector<float> memory = std::vector<float>(4 * STEPS * N * LANES + 16);
  float* aligned = (float*)(((uintptr_t)memory.data() + 63) & ~(uintptr_t)63);
  Steps& state = *(Steps*)aligned;
  Steps& decay = *(Steps*)(aligned + STEPS * N * LANES);
  Steps& dB = *(Steps*)(aligned + 2 * STEPS * N * LANES);
  Steps& dC = *(Steps*)(aligned + 3 * STEPS * N * LANES);

  void clear_sums() { std::memset(aligned + 2 * STEPS * N * LANES, 0, sizeof(float) * 2 * STEPS * N * LANES); }
};

// Gradients that are sums over batch and length; one per batch and channel block, so that threads never share them.
struct Sums {
  std::vector<float> A, D, bias;
  Sums(const ScanArguments& a, int N)
      : A(a.batch * N * a.channels), D(a.batch * a.channels), bias(a.batch * a.channels) {}
};

// One tile backwards: `dh` is the gradient of the state behind the tile, and on return of the state before it.
template <int N>
static void backward_tile(const ScanArguments& a, int64_t b, int64_t block, int64_t tile, const ScanGradients& grad,
                          Workspace<N>& w, float (*dh)[LANES], Sums& sums) {
  ScanTile<N> s(a, b, block);
  alignas(64) float start[N][LANES] = {}, dA[N][LANES] = {}, dD[LANES] = {}, dbias[LANES] = {};
  alignas(64) Tile dy = {}, dz = {}, slope = {};
  s.read(tile * STEPS);
  for (int n = 0; n < N; ++n) load_lanes(start[n], grad.starts + s.state(b * time_tiles(a) + tile, n), s.width);
  if (grad.y) load(dy, grad.y + s.lanes(), a.channels, s.T, s.width);
  if (a.z) {
    load(dz, a.z + s.row * a.z_stride + s.channel, a.z_stride, s.T, s.width);
    float *z = &dz[0][0], *g = &dy[0][0];
    SIMD for (int i = 0; i < s.T * LANES; ++i) {
      const float open = sigmoid(z[i]), gate = z[i], outer = g[i];
      g[i] = outer * gate * open;
      z[i] = outer * open * (1.f + gate * (1.f - open));  // times the ungated output, below
    }
  }
  float *raw = &s.delta[0][0], *derivative = &slope[0][0];
  SIMD for (int i = 0; i < s.T * LANES; ++i) {
    derivative[i] = sigmoid(raw[i]);
    raw[i] = softplus(raw[i]);
  }
  for (int t = 0; t < s.T; ++t) {
    const float *B = s.B(t), *delta = s.delta[t], *u = s.u[t];
    const float(*before)[LANES] = t ? w.state[t - 1] : start;
    for (int n = 0; n < N; ++n) {
      const float write = B[n];
      SIMD for (int i = 0; i < LANES; ++i) {
        const float decay = exp2_negative(delta[i] * s.A[n][i]);
        w.decay[t][n][i] = decay;
        w.state[t][n][i] = decay * before[n][i] + delta[i] * u[i] * write;
      }
    }
  }
  for (int t = s.T - 1; t >= 0; --t) {
    const float *B = s.B(t), *C = s.C(t), *delta = s.delta[t], *u = s.u[t];
    const float(*before)[LANES] = t ? w.state[t - 1] : start;
    alignas(64) float drive[LANES], by_decay[LANES] = {}, by_drive[LANES] = {};
    if (a.z) {
      alignas(64) float y[LANES];
      SIMD for (int i = 0; i < LANES; ++i) y[i] = s.D[i] * u[i];
      for (int n = 0; n < N; ++n) {
        const float read = C[n];
        SIMD for (int i = 0; i < LANES; ++i) y[i] += w.state[t][n][i] * read;
      }
      SIMD for (int i = 0; i < LANES; ++i) dz[t][i] *= y[i];
    }
    SIMD for (int i = 0; i < LANES; ++i) drive[i] = delta[i] * u[i];
    for (int n = 0; n < N; ++n) {
      const float write = B[n], read = C[n];
      SIMD for (int i = 0; i < LANES; ++i) {
        const float g = dh[n][i] + dy[t][i] * read;
        const float decayed = g * w.decay[t][n][i], exponent = decayed * before[n][i];
        w.dC[t][n][i] += dy[t][i] * w.state[t][n][i];
        w.dB[t][n][i] += g * drive[i];
        by_decay[i] += exponent * s.A[n][i];
        by_drive[i] += g * write;
        dA[n][i] += exponent * delta[i];
        dh[n][i] = decayed;
      }
    }
    SIMD for (int i = 0; i < LANES; ++i) {
      const float ddelta = (by_decay[i] * LN_2 + by_drive[i] * u[i]) * slope[t][i];
      const float du = by_drive[i] * delta[i] + dy[t][i] * s.D[i];
      dbias[i] += ddelta;
      dD[i] += dy[t][i] * u[i];
      s.delta[t][i] = ddelta;
      s.u[t][i] = du;
    }
  }
  store(grad.u + s.lanes(), s.u, a.channels, s.T, s.width);
  store(grad.delta + s.lanes(), s.delta, a.channels, s.T, s.width);
  if (a.z) store(grad.z + s.lanes(), dz, a.channels, s.T, s.width);
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < s.width; ++i) sums.A[s.state(s.b, n) + i] += dA[n][i];
  for (int i = 0; i < s.width; ++i) {
    sums.D[s.b * a.channels + s.channel + i] += dD[i];
    sums.bias[s.b * a.channels + s.channel + i] += dbias[i];
  }
}

// Adds what the lanes of one time tile have gathered for dB or dC to its rows (steps, N).
template <int N>
static void sum_lanes(float* rows, const typename Workspace<N>::Steps& gathered, int T) {
  for (int t = 0; t < T; ++t)
    for (int n = 0; n < N; ++n) {
      float sum = 0.f;
      for (int i = 0; i < LANES; ++i) sum += gathered[t][n][i];
      rows[t * N + n] += sum;
    }
}

static void add(float* total, const float* part, int64_t size) {
  for (int64_t i = 0; i < size; ++i) total[i] += part[i];
}

template <int N>
static void backward(const ScanArguments& a, const ScanGradients& grad) {
  const int64_t blocks = channel_blocks(a), tiles = time_tiles(a);
  Sums sums(a, N);
  std::vector<std::vector<float>> dB(a.threads), dC(a.threads);  // of one thread's samples, summed in order at the end
  std::vector<int64_t> sample(a.threads);                        // its first
  in_parallel(a.threads, a.batch * blocks, [&](int thread, int64_t first, int64_t last) {
    if (first == last) return;
    sample[thread] = first / blocks;
    const int64_t rows = ((last - 1) / blocks - sample[thread] + 1) * a.length;
    dB[thread].resize(rows * N);
    dC[thread].resize(rows * N);
    Workspace<N> workspace;
    std::vector<float> memory(blocks * N * LANES + 16);
    auto dh = (float(*)[N][LANES])(((uintptr_t)memory.data() + 63) & ~(uintptr_t)63);
    for (int64_t piece = first; piece < last;) {  // the channel blocks of one sample that fall to this thread
      const int64_t b = piece / blocks, block = piece % blocks, stop = std::min(blocks, block + last - piece);
      std::memset(dh, 0, sizeof(float) * blocks * N * LANES);
      if (grad.last_state)
        for (int64_t k = block; k < stop; ++k)
          for (int n = 0; n < N; ++n)
            load_lanes(dh[k][n], grad.last_state + (b * N + n) * a.channels + k * LANES, block_width(a, k));
      for (int64_t tile = tiles - 1; tile >= 0; --tile) {
        workspace.clear_sums();
        for (int64_t k = block; k < stop; ++k)
          backward_tile<N>(a, b, k, tile, grad, workspace, dh[k], sums);
        const int64_t row = (b - sample[thread]) * a.length + tile * STEPS;
        const int T = (int)std::min<int64_t>(STEPS, a.length - tile * STEPS);
        sum_lanes<N>(&dB[thread][row * N], workspace.dB, T);
        sum_lanes<N>(&dC[thread][row * N], workspace.dC, T);
      }
      if (grad.initial_state)
        for (int64_t k = block; k < stop; ++k)
          for (int n = 0; n < N; ++n)
            store_lanes(grad.initial_state + (b * N + n) * a.channels + k * LANES, dh[k][n], block_width(a, k));
      piece += stop - block;
    }
  });
  for (int thread = 0; thread < a.threads; ++thread)
    if (!dB[thread].empty()) {
      const int64_t place = sample[thread] * a.length * N, size = (int64_t)dB[thread].size();
      add(grad.B + place, dB[thread].data(), size);
      add(grad.C + place, dC[thread].data(), size);
    }
  for (int64_t b = 0; b < a.batch; ++b) {
    add(grad.A, &sums.A[b * N * a.channels], N * a.channels);
    if (grad.D) add(grad.D, &sums.D[b * a.channels], a.channels);
    if (grad.delta_bias) add(grad.delta_bias, &sums.bias[b * a.channels], a.channels);
  }
}

// Gradients that are sums (A, B, C, D, delta_bias) are added to: they must be zero on entry.
extern "C" int scan_backward(const ScanArguments* a, const ScanGradients* grad) { FOR_STATES(backward, a, *grad) }
