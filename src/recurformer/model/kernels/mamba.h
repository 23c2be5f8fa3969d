// What the C++ kernels share: the calling convention, vector-friendly functions, tiles and threads.
//
// Plain C++17 without torch headers, so that one binary serves every version of torch. Loops over LANES neighbouring
// channels are written out and left to the compiler, which turns them into AVX2, AVX-512 or NEON instructions.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

#define SIMD _Pragma("omp simd")

constexpr int LANES = 32;  // channels of a tile
constexpr int STEPS = TILE_STEPS;  // time steps of a tile, and between two stored states; set by the caller
constexpr float LOG2_E = 1.44269504088896f;
constexpr float LN_2 = 0.693147180559945f;

constexpr float SMALLEST_EXPONENT = -126.f;  // of a float that is not subnormal

// 2^x for x in [-126, 0], relative error below 3e-7: the polynomial of degree 5 that is 1 at 0 and nearest to 2^r.
static inline float exp2_normal(float x) {
  const float shifted = x + 12582912.f;  // 1.5 * 2^23: rounds x to an integer, which then stands in the low bits
  const float r = x - (shifted - 12582912.f);
  float p = 1.3264727e-3f;
  p = p * r + 9.671513e-3f;
  p = p * r + 5.5507336e-2f;
  p = p * r + 2.4022242e-1f;
  p = p * r + 6.9314700e-1f;
  p = p * r + 1.0f;
  int32_t exponent, bits;
  std::memcpy(&exponent, &shifted, 4);
  std::memcpy(&bits, &p, 4);
  bits += (int32_t)((uint32_t)exponent << 23);
  std::memcpy(&p, &bits, 4);
  return p;
}

// The same for every x <= 0; results under 2^-126 are 2^-126.
static inline float exp2_negative(float x) { return exp2_normal(x < SMALLEST_EXPONENT ? SMALLEST_EXPONENT : x); }

static inline float sigmoid(float x) {
  const float e = exp2_negative(-LOG2_E * std::fabs(x)), r = 1.f / (1.f + e);
  return x >= 0.f ? r : e * r;
}

// max(x, 0) + log1p(e^-|x|); the logarithm as 2 atanh(e / (2 + e)), a series in at most 1/9.
static inline float softplus(float x) {
  const float e = exp2_negative(-LOG2_E * std::fabs(x)), s = e / (2.f + e), q = s * s;
  float p = 1.f / 15.f;
  p = p * q + 1.f / 13.f;
  p = p * q + 1.f / 11.f;
  p = p * q + 1.f / 9.f;
  p = p * q + 1.f / 7.f;
  p = p * q + 1.f / 5.f;
  p = p * q + 1.f / 3.f;
  p = p * q + 1.f;
  return (x > 0.f ? x : 0.f) + 2.f * s * p;
}

static inline float wide(uint16_t half) {  // of a bfloat16
  const uint32_t bits = (uint32_t)half << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

static inline uint16_t narrow(float x) {  // to the nearest bfloat16, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return (uint16_t)((bits >> 16) | 64u);  // rounding could carry a NaN into infinity
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
static inline float wide(float x) { return x; }
static inline void set(float& to, float x) { to = x; }
static inline void set(uint16_t& to, float x) { to = narrow(x); }

using Tile = float[STEPS][LANES];

// Copies of T rows of `width` channels. All loads of a tile are independent, so that cache misses overlap.
static inline void load(Tile tile, const float* rows, int64_t stride, int T, int width) {
  if (width == LANES)
    for (int t = 0; t < T; ++t) SIMD for (int i = 0; i < LANES; ++i) tile[t][i] = rows[t * stride + i];
  else
    for (int t = 0; t < T; ++t)
      for (int i = 0; i < width; ++i) tile[t][i] = rows[t * stride + i];
}
static inline void store(float* rows, const Tile tile, int64_t stride, int T, int width) {
  if (width == LANES)
    for (int t = 0; t < T; ++t) SIMD for (int i = 0; i < LANES; ++i) rows[t * stride + i] = tile[t][i];
  else
    for (int t = 0; t < T; ++t)
      for (int i = 0; i < width; ++i) rows[t * stride + i] = tile[t][i];
}
static inline void load_lanes(float* lanes, const float* values, int width) {
  for (int i = 0; i < width; ++i) lanes[i] = values ? values[i] : 0.f;
}
static inline void store_lanes(float* values, const float* lanes, int width) {
  std::copy(lanes, lanes + width, values);
}

// Calls work(thread, first, past-the-last) once per thread, over `total` pieces of equal cost.
template <class Work>
static void in_parallel(int threads, int64_t total, Work work) {
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
  {
    const int64_t id = omp_get_thread_num(), team = omp_get_num_threads();
    work((int)id, total * id / team, total * (id + 1) / team);
  }
#else
  (void)threads;
  work(0, 0, total);
#endif
}

// Rows of numbers, `stride` apart.
struct Rows {
  const float* values;
  int64_t stride;
};

// out = x W^T + bias, of which rows [first, last) of W. Row by row, so that memory is read as it lies.
template <class Weight, class Out>
static void multiply(Rows x, int64_t batch, const Weight* W, const Weight* bias, int64_t width, int64_t first,
                     int64_t last, Out* out, int64_t out_stride) {
  for (int64_t row = first; row < last; ++row) {
    const Weight* w = W + row * width;
    for (int64_t b = 0; b < batch; ++b) {
      const float* values = x.values + b * x.stride;
      alignas(64) float sums[LANES] = {};
      float sum = bias ? wide(bias[row]) : 0.f;
      int64_t i = 0;
      for (; i + LANES <= width; i += LANES)
        SIMD for (int k = 0; k < LANES; ++k) sums[k] += wide(w[i + k]) * values[i + k];
      for (; i < width; ++i) sum += wide(w[i]) * values[i];
#pragma omp simd reduction(+ : sum)
      for (int k = 0; k < LANES; ++k) sum += sums[k];
      set(out[b * out_stride + row], sum);
    }
  }
}
