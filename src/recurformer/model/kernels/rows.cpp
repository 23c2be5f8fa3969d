// What a decoder layer does with one token of few sequences, apart from its attention: linear layers, norms, gated
// feed-forward parts. Reading the weights bounds it; sums are of float32, whatever the type of rows and weights.
#include "layer.h"

template <class T>
static void multiply_all(const ProductsArguments& a, const Product* all) {
  const Wide<T> x((const T*)a.x, a.x_stride, a.batch, a.features);
  int64_t total = 0;
  for (int64_t i = 0; i < a.count; ++i) total += all[i].outputs;
  in_parallel(a.threads, total, [&](int, int64_t first, int64_t last) {
    int64_t before = 0;
    for (int64_t i = 0; i < a.count; ++i) {
      const Product& p = all[i];
      const int64_t begin = std::max<int64_t>(first - before, 0), end = std::min(last - before, p.outputs);
      if (begin < end)
        multiply(x.rows, a.batch, (const T*)p.weight, (const T*)p.bias, a.features, begin, end, (T*)p.y, p.outputs);
      before += p.outputs;
    }
  });
}

template <class T, class X, class Y>
static void normalise(const X* x, const T* weight, Y* y, int64_t dim, float epsilon, float offset) {
  float sum = 0.f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < dim; ++i) sum += wide(x[i]) * wide(x[i]);
  const float scale = 1.f / std::sqrt(sum / (float)dim + epsilon);
  for (int64_t i = 0; i < dim; ++i) set(y[i], (wide(weight[i]) + offset) * (wide(x[i]) * scale));
}

template <class T>
static void normalise(const NormArguments& a) {
  const T* x = (const T*)a.x;
  for (int64_t row = 0; row < a.rows; ++row)
    normalise(x + row * a.dim, (const T*)a.weight, (T*)a.y + row * a.dim, a.dim, a.epsilon, a.offset);
}

// GELU's approximation: x (1 + tanh(u)) / 2 = x sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
static inline float twice_u(float x) { return 1.59576912f * (x + 0.044715f * x * x * x); }

// down(activation(gate x) * up x); between residual sums it is h + down(...) of the norm of h = residual + x.
template <class T>
static void feed(const GatedArguments& a) {
  std::vector<float> memory(2 * a.batch * a.inner), sums, normed;
  float *gate = memory.data(), *up = gate + a.batch * a.inner;
  const Wide<T> given((const T*)a.x, a.x_stride, a.batch, a.features);
  Rows x = given.rows;
  if (a.norm) {
    sums.resize(a.batch * a.features);
    normed.resize(a.batch * a.features);
    for (int64_t b = 0; b < a.batch; ++b) {
      float* h = sums.data() + b * a.features;
      const T* residual = (const T*)a.residual + b * a.residual_stride;
      for (int64_t i = 0; i < a.features; ++i) h[i] = wide(residual[i]) + x.values[b * x.stride + i];
      normalise(h, (const T*)a.norm, normed.data() + b * a.features, a.features, a.epsilon, a.offset);
    }
    x = {normed.data(), a.features};
  }
  in_parallel(a.threads, a.inner, [&](int, int64_t first, int64_t last) {
    multiply<T, float>(x, a.batch, (const T*)a.gate, nullptr, a.features, first, last, gate, a.inner);
    multiply<T, float>(x, a.batch, (const T*)a.up, nullptr, a.features, first, last, up, a.inner);
    for (int64_t b = 0; b < a.batch; ++b) {
      float *g = gate + b * a.inner, *u = up + b * a.inner;
      if (a.tanh)
        SIMD for (int64_t i = first; i < last; ++i) u[i] *= g[i] * sigmoid(twice_u(g[i]));
      else
        SIMD for (int64_t i = first; i < last; ++i) u[i] *= g[i] * sigmoid(g[i]);
    }
  });
  std::vector<float> outputs(a.norm ? a.batch * a.outputs : 0);
  in_parallel(a.threads, a.outputs, [&](int, int64_t first, int64_t last) {
    const Rows inner{up, a.inner};
    if (!a.norm) {
      multiply<T, T>(inner, a.batch, (const T*)a.down, nullptr, a.inner, first, last, (T*)a.y, a.outputs);
      return;
    }
    multiply<T, float>(inner, a.batch, (const T*)a.down, nullptr, a.inner, first, last, outputs.data(), a.outputs);
    for (int64_t b = 0; b < a.batch; ++b)
      for (int64_t i = first; i < last; ++i)
        set(((T*)a.y)[b * a.outputs + i], sums[b * a.outputs + i] + outputs[b * a.outputs + i]);
  });
}

extern "C" {
int products(const ProductsArguments* a, const Product* all) {
  a->half ? multiply_all<uint16_t>(*a, all) : multiply_all<float>(*a, all);
  return 0;
}

int rms_norm(const NormArguments* a) {
  a->half ? normalise<uint16_t>(*a) : normalise<float>(*a);
  return 0;
}

int gated_products(const GatedArguments* a) {
  a->half ? feed<uint16_t>(*a) : feed<float>(*a);
  return 0;
}
}
