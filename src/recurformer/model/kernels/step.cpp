// One decoding step of a Mamba block: the convolution of the newest input, and the update of the state, in place.
//
// Float32, no gaps between elements but where a stride is named. A step is too small to share among threads.
#include "mamba.h"

struct StepArguments {
  const float *u, *delta, *A, *B, *C, *D, *z;  // (batch, channels) or (batch, N); A (channels, N), D (channels)
  float *state, *y;                            // (batch, channels, N), (batch, channels)
  int64_t u_stride, delta_stride, z_stride, B_stride, C_stride, batch, channels, states;
};

struct WindowArguments {
  const float *x, *weight, *bias;  // (batch, channels), (channels, taps), (channels); bias may be null
  float *window, *y;               // (batch, channels, taps), (batch, channels)
  int64_t x_stride, batch, channels, taps;
};

extern "C" {
int scan_step(const StepArguments* a) {
  std::vector<float> lanes(3 * a->channels);
  float *step = lanes.data(), *drive = step + a->channels, *gate = drive + a->channels;
  for (int64_t b = 0; b < a->batch; ++b) {
    const float *u = a->u + b * a->u_stride, *raw = a->delta + b * a->delta_stride, *z = a->z + b * a->z_stride;
    const float *B = a->B + b * a->B_stride, *C = a->C + b * a->C_stride;
    SIMD for (int64_t d = 0; d < a->channels; ++d) {
      step[d] = softplus(raw[d]);
      drive[d] = step[d] * u[d];
      gate[d] = z[d] * sigmoid(z[d]);
    }
    for (int64_t d = 0; d < a->channels; ++d) {
      const float *A = a->A + d * a->states, delta = step[d] * LOG2_E, write = drive[d];
      float *h = a->state + (b * a->channels + d) * a->states, y = a->D[d] * u[d];
#pragma omp simd reduction(+ : y)
      for (int64_t n = 0; n < a->states; ++n) {
        h[n] = exp2_negative(delta * A[n]) * h[n] + write * B[n];
        y += h[n] * C[n];
      }
      a->y[b * a->channels + d] = y * gate[d];
    }
  }
  return 0;
}

int convolution_step(const WindowArguments* a) {
  for (int64_t b = 0; b < a->batch; ++b)
    for (int64_t d = 0; d < a->channels; ++d) {
      float *window = a->window + (b * a->channels + d) * a->taps, sum = a->bias ? a->bias[d] : 0.f;
      for (int64_t k = 0; k + 1 < a->taps; ++k) window[k] = window[k + 1];
      window[a->taps - 1] = a->x[b * a->x_stride + d];
      for (int64_t k = 0; k < a->taps; ++k) sum += a->weight[d * a->taps + k] * window[k];
      a->y[b * a->channels + d] = sum * sigmoid(sum);
    }
  return 0;
}
}
