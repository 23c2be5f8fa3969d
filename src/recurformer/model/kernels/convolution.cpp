// The causal depthwise convolution of Mamba with its SiLU, forward and backward.
//
//   c_t = bias + sum_k weight_k x_{t - (K - 1) + k}        y_t = silu(c_t)
//
// x, y are (batch, length, channels), float32, channels contiguous, x with any stride between rows; what came before the
// first row is `history` (batch, channels, K - 1). weight is (channels, K).
#include "mamba.h"

struct ConvolutionArguments {
  const float *x, *weight;
  const float *bias, *history;  // each may be null
  int64_t x_stride, batch, length, channels;
  int32_t taps, threads;
};

struct ConvolutionGradients {
  const float* y;                       // incoming, (batch, length, channels)
  float *x, *weight, *bias, *history;   // bias and history null where the input is; weight and bias are added to
};

// One tile of STEPS rows by LANES channels, with the K - 1 rows before it.
template <int K>
struct ConvolutionTile {
  const ConvolutionArguments& a;
  const int64_t b, channel;
  const int width;
  alignas(64) float weight[K][LANES] = {}, bias[LANES] = {};
  alignas(64) float x[STEPS + K - 1][LANES] = {};
  int64_t row = 0;
  int T = 0;

  ConvolutionTile(const ConvolutionArguments& arguments, int64_t batch, int64_t block)
      : a(arguments), b(batch), channel(block * LANES), width((int)std::min<int64_t>(LANES, a.channels - channel)) {
    for (int k = 0; k < K; ++k)
      for (int i = 0; i < width; ++i) weight[k][i] = a.weight[(channel + i) * K + k];
    load_lanes(bias, a.bias ? a.bias + channel : nullptr, width);
  }

  void read(int64_t start) {
    row = b * a.length + start;
    T = (int)std::min<int64_t>(STEPS, a.length - start);
    for (int t = -(K - 1); t < T; ++t) {
      const int64_t place = start + t;
      float* lanes = x[t + K - 1];
      if (place >= 0)
        std::copy_n(a.x + (b * a.length + place) * a.x_stride + channel, width, lanes);
      else
        for (int i = 0; i < width; ++i)
          lanes[i] = a.history ? a.history[(b * a.channels + channel + i) * (K - 1) + place + K - 1] : 0.f;
    }
  }

  void convolve(int t, float* c) const {
    SIMD for (int i = 0; i < LANES; ++i) {
      float sum = bias[i];
      for (int k = 0; k < K; ++k) sum += weight[k][i] * x[t + k][i];
      c[i] = sum;
    }
  }
};

template <int K>
static void forward(const ConvolutionArguments& a, float* y) {
  const int64_t blocks = (a.channels + LANES - 1) / LANES;
  in_parallel(a.threads, a.batch * blocks, [&](int, int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      ConvolutionTile<K> s(a, piece / blocks, piece % blocks);
      alignas(64) Tile out;
      for (int64_t start = 0; start < a.length; start += STEPS) {
        s.read(start);
        for (int t = 0; t < s.T; ++t) {
          s.convolve(t, out[t]);
          SIMD for (int i = 0; i < LANES; ++i) out[t][i] *= sigmoid(out[t][i]);
        }
        store(y + s.row * a.channels + s.channel, out, a.channels, s.T, s.width);
      }
    }
  });
}

template <int K>
static void backward(const ConvolutionArguments& a, const ConvolutionGradients& grad) {
  const int64_t blocks = (a.channels + LANES - 1) / LANES, tiles = (a.length + STEPS - 1) / STEPS;
  std::vector<float> dweights(a.batch * blocks * (K + 1) * LANES);  // K taps and the bias of every piece
  in_parallel(a.threads, a.batch * blocks, [&](int, int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      ConvolutionTile<K> s(a, piece / blocks, piece % blocks);
      alignas(64) float dc[STEPS + K - 1][LANES] = {};  // of this tile's rows, then of the K - 1 rows behind it
      alignas(64) float dweight[K + 1][LANES] = {};
      alignas(64) Tile dy = {}, dx = {};
      for (int64_t tile = tiles - 1; tile >= 0; --tile) {
        std::memcpy(dc[STEPS], dc[0], sizeof(float) * (K - 1) * LANES);
        s.read(tile * STEPS);
        if (s.T < STEPS) std::memset(dc, 0, sizeof dc);  // the last rows of all
        load(dy, grad.y + s.row * a.channels + s.channel, a.channels, s.T, s.width);
        for (int t = s.T - 1; t >= 0; --t) {
          alignas(64) float c[LANES];
          s.convolve(t, c);
          SIMD for (int i = 0; i < LANES; ++i) {
            const float open = sigmoid(c[i]), g = dy[t][i] * open * (1.f + c[i] * (1.f - open));
            dc[t][i] = g;
            dweight[K][i] += g;
            for (int k = 0; k < K; ++k) dweight[k][i] += g * s.x[t + k][i];
          }
        }
        for (int t = 0; t < s.T; ++t)
          SIMD for (int i = 0; i < LANES; ++i) {
            float sum = 0.f;
            for (int k = 0; k < K; ++k) sum += s.weight[k][i] * dc[t + K - 1 - k][i];
            dx[t][i] = sum;
          }
        store(grad.x + s.row * a.channels + s.channel, dx, a.channels, s.T, s.width);
      }
      if (grad.history)  // the rows before the first: only the taps that reach back to them
        for (int t = 0; t < K - 1; ++t)
          for (int i = 0; i < s.width; ++i) {
            float sum = 0.f;
            for (int k = 0; k <= t; ++k) sum += s.weight[k][i] * dc[t - k][i];
            grad.history[(s.b * a.channels + s.channel + i) * (K - 1) + t] = sum;
          }
      std::copy_n(dweight[0], (K + 1) * LANES, &dweights[piece * (K + 1) * LANES]);
    }
  });
  for (int64_t piece = 0; piece < a.batch * blocks; ++piece) {
    const float* sums = &dweights[piece * (K + 1) * LANES];
    const int64_t channel = piece % blocks * LANES;
    for (int i = 0; i < std::min<int64_t>(LANES, a.channels - channel); ++i) {
      for (int k = 0; k < K; ++k) grad.weight[(channel + i) * K + k] += sums[k * LANES + i];
      if (grad.bias) grad.bias[channel + i] += sums[K * LANES + i];
    }
  }
}

#define FOR_TAPS(kernel, a, ...)                \
  switch ((a)->taps) {                          \
    case 2: kernel<2>(*(a), __VA_ARGS__); return 0; \
    case 3: kernel<3>(*(a), __VA_ARGS__); return 0; \
    case 4: kernel<4>(*(a), __VA_ARGS__); return 0; \
    default: return 1;                          \
  }

extern "C" {
int convolution_forward(const ConvolutionArguments* a, float* y) { FOR_TAPS(forward, a, y) }
int convolution_backward(const ConvolutionArguments* a, const ConvolutionGradients* grad) { FOR_TAPS(backward, a, *grad) }
}
