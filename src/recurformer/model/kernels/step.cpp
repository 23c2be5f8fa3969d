// One decoding step of a Mamba block: the convolution of the newest input, the update of the state, in place, or the whole
// block from its input to the gated channels.
//
// No gaps between elements but where a stride is named. States and sums are of float32; a whole block also takes weights,
// rows and convolution windows of bfloat16 (T). The convolution and the state are too small to share among threads, the
// weights of a whole block are not. Loops over states and taps are unrolled for the usual numbers; a template argument
// of 0 stands for any other.
#include "layer.h"

struct StepArguments {
  const float *u, *delta, *A, *B, *C, *D, *z;  // (batch, channels) or (batch, N); A (channels, N), D (channels)
  float* state;                                // (batch, channels, N)
  void* y;                                     // (batch, channels)
  int64_t u_stride, delta_stride, z_stride, B_stride, C_stride, batch, channels, states;
};

struct WindowArguments {
  const float* x;             // (batch, channels)
  const void *weight, *bias;  // (channels, taps), (channels) or null
  void* window;               // (batch, channels, taps)
  float* y;                   // (batch, channels)
  int64_t x_stride, batch, channels, taps;
};

// Channels [first, last) of a step of the scan.
template <class T, int N>
static void scan_channels(const StepArguments& a, int64_t first, int64_t last) {
  const int64_t states = N ? N : a.states, width = last - first;
  std::vector<float> lanes(3 * width);
  float *delta = lanes.data(), *drive = delta + width, *gate = drive + width;
  for (int64_t b = 0; b < a.batch; ++b) {
    const float *u = a.u + b * a.u_stride + first, *raw = a.delta + b * a.delta_stride + first;
    const float *z = a.z + b * a.z_stride + first, *D = a.D + first;
    const float *B = a.B + b * a.B_stride, *C = a.C + b * a.C_stride;
    const int64_t channel = b * a.channels + first;
    SIMD for (int64_t i = 0; i < width; ++i) {
      delta[i] = softplus(raw[i]);
      drive[i] = delta[i] * u[i];
      gate[i] = z[i] * sigmoid(z[i]);
    }
    for (int64_t i = 0; i < width; ++i) {
      const float *A = a.A + (first + i) * states, time = delta[i] * LOG2_E, write = drive[i];
      float *h = a.state + (channel + i) * states, y = 0.f;
#pragma omp simd reduction(+ : y)
      for (int64_t n = 0; n < states; ++n) {
        h[n] = exp2_negative(time * A[n]) * h[n] + write * B[n];
        y += h[n] * C[n];
      }
      set(((T*)a.y)[channel + i], (y + D[i] * u[i]) * gate[i]);
    }
  }
}

template <class T>
static void scan_channels(const StepArguments& a, int64_t first, int64_t last) {
  switch (a.states) {
    case 8: return scan_channels<T, 8>(a, first, last);
    case 16: return scan_channels<T, 16>(a, first, last);
    case 32: return scan_channels<T, 32>(a, first, last);
    case 64: return scan_channels<T, 64>(a, first, last);
    default: return scan_channels<T, 0>(a, first, last);
  }
}

template <class T, int K>
static void convolve(const WindowArguments& a) {
  const int64_t taps = K ? K : a.taps;
  const T *weight = (const T*)a.weight, *bias = (const T*)a.bias;
  for (int64_t b = 0; b < a.batch; ++b) {
    const float* x = a.x + b * a.x_stride;
    float* y = a.y + b * a.channels;
    for (int64_t d = 0; d < a.channels; ++d) {
      T* window = (T*)a.window + (b * a.channels + d) * taps;
      float sum = bias ? wide(bias[d]) : 0.f;
      for (int64_t k = 0; k + 1 < taps; ++k) window[k] = window[k + 1];
      set(window[taps - 1], x[d]);
      for (int64_t k = 0; k < taps; ++k) sum += wide(weight[d * taps + k]) * wide(window[k]);
      y[d] = sum;
    }
    SIMD for (int64_t d = 0; d < a.channels; ++d) y[d] *= sigmoid(y[d]);
  }
}

template <class T>
static void convolve(const WindowArguments& a) {
  a.taps == 4 ? convolve<T, 4>(a) : convolve<T, 0>(a);
}

template <class T>
static void mix(const BlockArguments& a) {
  const int64_t D = a.channels, N = a.states, selected = a.steps + 2 * N;
  std::vector<float> memory(a.batch * (4 * D + selected));
  float *projected = memory.data(), *values = projected + a.batch * 2 * D, *delta = values + a.batch * D;
  float* chosen = delta + a.batch * D;  // (batch, steps + 2 N): step size or what gives it, B, C
  const auto times = [&](Rows x, const void* weight, const void* bias, int64_t width, int64_t first, int64_t last,
                         float* out, int64_t stride) {
    multiply<T, float>(x, a.batch, (const T*)weight, (const T*)bias, width, first, last, out, stride);
  };
  const Wide<T> x((const T*)a.x, a.x_stride, a.batch, a.features);
  in_parallel(a.threads, 2 * D, [&](int, int64_t first, int64_t last) {
    times(x.rows, a.in_proj, nullptr, a.features, first, last, projected, 2 * D);
  });
  convolve<T>({projected, a.weight, a.bias, a.window, values, 2 * D, a.batch, D, a.taps});
  in_parallel(a.threads, selected, [&](int, int64_t first, int64_t last) {
    times({values, D}, a.selection, a.selection_bias, D, first, last, chosen, selected);
  });
  const Rows steps = a.step_weight ? Rows{delta, D} : Rows{chosen, selected};
  const float *B = chosen + a.steps, *C = B + N, *gate = projected + D;
  const StepArguments scan = {values, steps.values, a.A,   B, C, a.D, gate, a.state, a.y, D, steps.stride,
                              2 * D,  selected,     selected, a.batch, D, N};
  in_parallel(a.threads, D, [&](int, int64_t first, int64_t last) {
    if (a.step_weight) times({chosen, selected}, a.step_weight, a.step_bias, a.steps, first, last, delta, D);
    scan_channels<T>(scan, first, last);
  });
}

extern "C" {
int scan_step(const StepArguments* a) {
  scan_channels<float>(*a, 0, a->channels);
  return 0;
}

int convolution_step(const WindowArguments* a) {
  convolve<float>(*a);
  return 0;
}

int block_step(const BlockArguments* a) {
  a->half ? mix<uint16_t>(*a) : mix<float>(*a);
  return 0;
}
}
