// A layer's attention windows. In a decoding step the newest token's key and value are rotated, packed and written to
// their slots, and its queries attend to all slots, which are read as they are stored. At an input's beginning the
// tokens' queries, keys and values are rotated and kept likewise, and given back for the attention of whole sequences.
// Beside a window there may be the state of `Retention`, whose step reads the same rows.
//
// Slots are rings (`Window._slot_places`): a step writes one slot of each KV head, in place. Packed rows are as of `pack`:
// whole numbers of 8 to 4 bits, then their scale, a bfloat16. Of fewer than 8 bits, two numbers share a byte for their
// lowest 4 bits, the first below; then come the bits above, of all first numbers of a byte and then of all second ones.
#include "layer.h"

constexpr int64_t PIECE = 128;           // slots of a task, the unit that threads share
constexpr int64_t ROWS = 4;              // slots that are read at once; divides PIECE
constexpr int64_t WORTH_SHARING = 1024;  // slots of all groups; fewer are not worth waking a second thread
constexpr int HALF = 16, SINGLE = 32;    // bits of numbers as the model computes them: bfloat16 or float32

static inline float wide_at(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, 2);
  return wide(half);
}

static inline float narrow_at(float x, uint8_t* bytes) {
  const uint16_t half = narrow(x);
  std::memcpy(bytes, &half, 2);
  return wide(half);
}

template <class T>
static void rotate(float* out, const T* x, const T* cos, const T* sin, int64_t turned, int64_t dim) {
  const int64_t half = turned / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float first = wide(x[i]), second = wide(x[i + half]);
    out[i] = first * wide(cos[i]) - second * wide(sin[i]);
    out[i + half] = second * wide(cos[i + half]) + first * wide(sin[i + half]);
  }
  for (int64_t i = turned; i < dim; ++i) out[i] = wide(x[i]);
}

// x times Hadamard's orthonormal matrix, in place, by blocks of the largest power of two that divides dim.
static void hadamard(float* x, int64_t dim) {
  const int64_t width = dim & -dim;
  for (int64_t reach = 1; reach < width; reach *= 2)
    for (int64_t start = 0; start < dim; start += 2 * reach)
      for (int64_t i = start; i < start + reach; ++i) {
        const float first = x[i], second = x[i + reach];
        x[i] = first + second;
        x[i + reach] = first - second;
      }
  const float scale = (float)std::pow((double)width, -0.5);
  for (int64_t i = 0; i < dim; ++i) x[i] *= scale;
}

static int64_t number_bytes(int64_t bits, int64_t dim) { return (dim * bits + 7) / 8; }

static int64_t row_bytes(int64_t bits, int64_t dim) { return number_bytes(bits, dim) + (bits < HALF ? 2 : 0); }

// Where the bits of a number above the lowest four stand: `each` numbers in a byte, and bytes for all of them. Number j, in
// the order in which they are stored, is in byte j % bytes.
struct Above {
  int64_t bits, each, bytes;
  Above(int64_t all, int64_t dim) : bits(all - 4), each(8 / bits), bytes((dim + each - 1) / each) {}
};

// The place in a row of fewer than 8 bits of number i: the first ones of all bytes, then the second ones.
static int64_t stored_at(int64_t i, int64_t dim) { return (i % 2) * (dim / 2) + i / 2; }

static void pack(uint8_t* row, const float* x, int64_t bits, int64_t dim) {
  if (bits == SINGLE) {
    std::memcpy(row, x, dim * 4);
    return;
  }
  if (bits == HALF) {
    for (int64_t i = 0; i < dim; ++i) narrow_at(x[i], row + 2 * i);
    return;
  }
  const float steps = (float)(1 << bits);
  float most = 0.f;
  for (int64_t i = 0; i < dim; ++i) most = std::max(most, std::fabs(x[i]));
  float width = narrow_at(most * (2.f / steps), row + number_bytes(bits, dim));
  width = std::max(width, 1.17549435e-38f);  // the least normal number
  const auto number = [&](float value) {
    return (uint8_t)std::min(std::max(std::floor(value / width + steps / 2), 0.f), steps - 1);
  };
  if (bits == 8) {
    for (int64_t i = 0; i < dim; ++i) row[i] = number(x[i]);
    return;
  }
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; ++i) row[i] = (uint8_t)((number(x[2 * i]) & 15) | (number(x[2 * i + 1]) << 4));
  if (bits == 4) return;
  const Above above(bits, dim);
  std::fill_n(row + half, above.bytes, 0);
  for (int64_t i = 0; i < dim; ++i) {
    const int64_t stored = stored_at(i, dim);
    row[half + stored % above.bytes] |= (uint8_t)((number(x[i]) >> 4) << (above.bits * (stored / above.bytes)));
  }
}

// Numbers of 5 or 6 bits as they are stored, where the bits above fill whole words: eight at a time. A vector that is
// loaded before all of it has left the processor's last stores waits for them: g++ keeps these loops in registers.
template <int BITS, int DIM>
static inline void numbers_by_words(const uint8_t* row, float* out) {
  const Above above(BITS, DIM);
  const int64_t words = DIM / 8, shared = above.bytes / 8;
  const uint64_t mask = 0x0101010101010101 * ((1 << above.bits) - 1);
  uint8_t numbers[DIM];
  SIMD for (int64_t i = 0; i < DIM / 2; ++i) {
    numbers[i] = row[i] & 15;
    numbers[DIM / 2 + i] = row[i] >> 4;
  }
  uint64_t low[DIM / 8], high[DIM / 8];
  std::memcpy(low, numbers, DIM);
  for (int64_t w = 0; w < words; ++w) std::memcpy(high + w, row + DIM / 2 + 8 * (w % shared), 8);
  SIMD for (int64_t w = 0; w < words; ++w) low[w] |= (high[w] >> (above.bits * (w / shared)) & mask) << 4;
  std::memcpy(numbers, low, DIM);
  SIMD for (int64_t i = 0; i < DIM; ++i) out[i] = (float)(int32_t)numbers[i];
}

// Numbers of a row in the order in which they are stored (see `stored_at`). Returns their scale; a number n of few bits
// stands for (n + 0.5 - 2^(bits - 1)) times it.
template <int BITS, int DIM = 0>
static inline float numbers_of(const uint8_t* row, int64_t any_dim, float* out) {
  const int64_t dim = DIM ? DIM : any_dim;
  if (BITS == SINGLE) {
    std::memcpy(out, row, dim * 4);
    return 1.f;
  }
  if (BITS == HALF) {
    for (int64_t i = 0; i < dim; ++i) out[i] = wide_at(row + 2 * i);
    return 1.f;
  }
  if constexpr (DIM > 0 && DIM % 64 == 0 && BITS > 4 && BITS < 8) {
    numbers_by_words<BITS, DIM>(row, out);
  } else if (BITS < 8) {
    const int64_t half = dim / 2;
    SIMD for (int64_t i = 0; i < half; ++i) {
      out[i] = (float)(int32_t)(row[i] & 15);
      out[half + i] = (float)(int32_t)(row[i] >> 4);
    }
    if (BITS > 4) {
      const Above above(BITS, dim);
      const uint8_t* more = row + half;
      for (int64_t part = 0; part < above.each; ++part) {
        const int64_t first = part * above.bytes, count = std::min(above.bytes, dim - first), shift = above.bits * part;
        const int32_t mask = (1 << above.bits) - 1;
        SIMD for (int64_t i = 0; i < count; ++i) out[first + i] += (float)(int32_t)(((more[i] >> shift) & mask) << 4);
      }
    }
  } else {
    SIMD for (int64_t i = 0; i < dim; ++i) out[i] = (float)(int32_t)row[i];
  }
  return wide_at(row + number_bytes(BITS, dim));
}

// Call with the bits as a constant.
template <class Use>
static auto with_bits(int64_t bits, Use use) {
  switch (bits) {
    case 4: return use(std::integral_constant<int, 4>());
    case 5: return use(std::integral_constant<int, 5>());
    case 6: return use(std::integral_constant<int, 6>());
    case 8: return use(std::integral_constant<int, 8>());
    case HALF: return use(std::integral_constant<int, HALF>());
    default: return use(std::integral_constant<int, SINGLE>());
  }
}

static void as_stored(float* x, int64_t bits, int64_t dim, bool back) {
  if (bits >= 8) return;
  std::vector<float> copy(x, x + dim);
  for (int64_t i = 0; i < dim; ++i) {
    const int64_t stored = stored_at(i, dim);
    if (back) x[i] = copy[stored];
    else x[stored] = copy[i];
  }
}

struct Task {
  int64_t row, group, first, last;  // slots [first, last), at most PIECE
};

// What the slots of a task give to the queries of their KV head: the greatest score, the sum of weights relative to it,
// and the sum of the weighted values.
struct Part {
  float *most, *sum, *values;  // (queries), (queries), (queries, dim)
};

// ROWS neighbouring slots as numbers (ROWS, dim), and their scales; both are 0 past the last one.
template <int BITS, int DIM>
static inline void read_slots(const uint8_t* slots, int64_t stride, int64_t count, int64_t dim, float* numbers,
                              float* scales) {
  for (int64_t r = 0; r < ROWS; ++r) {
    float* own = numbers + r * dim;
    scales[r] = r < count ? numbers_of<BITS, DIM>(slots + r * stride, dim, own) : 0.f;
    if (r >= count) std::fill(own, own + dim, 0.f);
  }
}

template <int BITS, int DIM>
static void attend(const WindowSlots& window, const WindowGroup& group, const Task& task, const float* queries,
                   int64_t any_dim, Part part, float* memory) {
  const int64_t dim = DIM ? DIM : any_dim, count = group.queries, length = task.last - task.first;
  const int64_t first = window.at(task.row, task.first, group.place), stride = window.slot;
  const uint8_t *keys = window.keys + first, *values_at = window.values + first;
  const float offset = BITS >= HALF ? 0.f : 0.5f - (float)(1 << (BITS - 1) % SINGLE);
  const float *a = memory, *b = a + dim, *c = b + dim, *d = c + dim;  // numbers of ROWS slots
  float *scores = memory + ROWS * dim, scales[ROWS];
  for (int64_t q = 0; q < count; ++q) {  // the offset's share of each product
    part.sum[q] = 0.f;
    for (int64_t i = 0; i < dim; ++i) part.sum[q] += offset * queries[q * dim + i];
  }
  for (int64_t s = 0; s < length; s += ROWS) {
    read_slots<BITS, DIM>(keys + s * stride, stride, length - s, dim, memory, scales);
    for (int64_t q = 0; q < count; ++q) {
      const float* query = queries + q * dim;
      float* own = scores + q * PIECE + s;
      float in_a = 0.f, in_b = 0.f, in_c = 0.f, in_d = 0.f;
#pragma omp simd reduction(+ : in_a, in_b, in_c, in_d) simdlen(8)
      for (int64_t i = 0; i < dim; ++i) {
        in_a += query[i] * a[i];
        in_b += query[i] * b[i];
        in_c += query[i] * c[i];
        in_d += query[i] * d[i];
      }
      const float all = part.sum[q];
      own[0] = scales[0] * (all + in_a);
      own[1] = scales[1] * (all + in_b);
      own[2] = scales[2] * (all + in_c);
      own[3] = scales[3] * (all + in_d);
    }
  }
  for (int64_t q = 0; q < count; ++q) {
    float *own = scores + q * PIECE, most = own[0], sum = 0.f;
    for (int64_t s = 1; s < length; ++s) most = std::max(most, own[s]);
    const float shift = most == -INFINITY ? 0.f : most;  // with no finite score, nothing here counts beside others
#pragma omp simd reduction(+ : sum)
    for (int64_t s = 0; s < length; ++s) {
      own[s] = exp2_negative(own[s] - shift);
      sum += own[s];
    }
    part.most[q] = most;
    part.sum[q] = sum;
  }
  std::fill(part.values, part.values + count * dim, 0.f);
  for (int64_t s = 0; s < length; s += ROWS) {
    read_slots<BITS, DIM>(values_at + s * stride, stride, length - s, dim, memory, scales);
    for (int64_t q = 0; q < count; ++q) {
      const float* own = scores + q * PIECE + s;
      float weight[ROWS], all = 0.f;
      for (int64_t r = 0; r < ROWS; ++r) all += weight[r] = own[r] * scales[r];
      all *= offset;
      float* values = part.values + q * dim;
      SIMD for (int64_t i = 0; i < dim; ++i)
        values[i] += all + weight[0] * a[i] + weight[1] * b[i] + weight[2] * c[i] + weight[3] * d[i];
    }
  }
}

template <int BITS>
static void attend(const WindowSlots& window, const WindowGroup& group, const Task& task, const float* queries,
                   int64_t dim, Part part, float* memory) {
  switch (dim) {
    case 64: return attend<BITS, 64>(window, group, task, queries, dim, part, memory);
    case 128: return attend<BITS, 128>(window, group, task, queries, dim, part, memory);
    default: return attend<BITS, 0>(window, group, task, queries, dim, part, memory);
  }
}

// A slot's place after `place` tokens (see `Window._slot_places`).
static int64_t slot_of(int64_t place, int64_t sinks, int64_t tokens) {
  return place < sinks ? place : sinks + (place - sinks) % tokens;
}

// The query, key and value of a token, rotated.
template <class T>
struct Token {
  const WindowStepArguments& a;
  int64_t b, t;
  void turn(float* out, const T* x) const {
    const int64_t step = t * a.turned;
    rotate(out, x, (const T*)a.cos + b * a.cos_stride + step, (const T*)a.sin + b * a.sin_stride + step, a.turned, a.dim);
  }
  void query(float* out, int64_t h) const {
    turn(out, (const T*)a.queries + b * a.queries_stride + t * a.queries_step + h * a.dim);
  }
  void entry(float* key, float* value, int64_t g, bool packs) const {
    turn(key, (const T*)a.keys + b * a.keys_stride + t * a.keys_step + g * a.dim);
    const T *center = (const T*)a.center, *given = (const T*)a.values + b * a.values_stride + t * a.values_step;
    for (int64_t i = 0; i < a.dim; ++i) value[i] = wide(given[g * a.dim + i]);
    if (center && g >= a.centered)
      for (int64_t i = 0; i < a.dim; ++i) key[i] -= wide(center[(g - a.centered) * a.dim + i]);
    if (packs) {
      hadamard(key, a.dim);
      hadamard(value, a.dim);
    }
  }
};

// Numbers of a row as `pack` kept them, turned back.
static void unpack(float* out, const uint8_t* row, int64_t bits, int64_t dim) {
  const float scale = with_bits(bits, [&](auto known) { return numbers_of<known>(row, dim, out); });
  if (bits >= HALF) return;
  const float offset = 0.5f - (float)(1 << (bits - 1));
  SIMD for (int64_t i = 0; i < dim; ++i) out[i] = scale * (out[i] + offset);
  as_stored(out, bits, dim, true);
  hadamard(out, dim);
}

template <class T>
static void begin(const WindowStepArguments& a, const WindowSlots* windows, const WindowGroup* groups) {
  const int64_t dim = a.dim;
  in_parallel(a.threads, a.batch * a.length, [&](int, int64_t first, int64_t last) {
    std::vector<float> numbers(2 * dim);
    std::vector<uint8_t> rows(2 * row_bytes(SINGLE, dim));
    float *key = numbers.data(), *value = key + dim;
    for (int64_t i = first; i < last; ++i) {
      const int64_t place = i % a.length;
      const Token<T> token{a, i / a.length, place};
      for (int64_t g = 0; g < a.groups; ++g) {
        const WindowGroup& group = groups[g];
        const WindowSlots& window = windows[group.window];
        const int64_t bytes = row_bytes(window.bits, dim);
        token.entry(key, value, g, window.bits < HALF);
        pack(rows.data(), key, window.bits, dim);
        pack(rows.data() + bytes, value, window.bits, dim);
        if (place < a.sinks || place >= a.length - window.tokens) {
          const int64_t at = window.at(token.b, slot_of(place, a.sinks, window.tokens), group.place);
          std::copy_n(rows.data(), bytes, window.keys + at);
          std::copy_n(rows.data() + bytes, bytes, window.values + at);
        }
        unpack(key, rows.data(), window.bits, dim);
        unpack(value, rows.data() + bytes, window.bits, dim);
        T* entry = (T*)a.entries + (i * a.groups + group.sorted) * 2 * dim;
        for (int64_t d = 0; d < 2 * dim; ++d) set(entry[d], numbers[d]);
        for (int64_t h = 0; h < group.queries; ++h) {
          T* query = (T*)a.y + (i * a.heads + group.sorted_query + h) * dim;
          token.query(key, group.first_query + h);
          for (int64_t d = 0; d < dim; ++d) set(query[d], key[d]);
        }
      }
    }
  });
}

template <class T>
static void step(const WindowStepArguments& a, const WindowSlots* windows, const WindowGroup* groups) {
  const int64_t dim = a.dim;
  const float scale = (float)std::pow((double)dim, -0.5) * LOG2_E;  // weights are powers of two
  std::vector<float> queries(a.batch * a.heads * dim), entry(2 * dim);
  std::vector<Task> tasks;
  int64_t most = 0;
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t g = 0; g < a.groups; ++g) {
      const WindowGroup& group = groups[g];
      const WindowSlots& window = windows[group.window];
      const bool packs = window.bits < HALF;
      const int64_t place = a.seen[b];
      const int64_t slot = slot_of(place, a.sinks, window.tokens);
      const Token<T> token{a, b, 0};
      float *key = entry.data(), *value = key + dim;
      token.entry(key, value, g, packs);
      const int64_t at = window.at(b, slot, group.place);
      pack(window.keys + at, key, window.bits, dim);
      pack(window.values + at, value, window.bits, dim);
      for (int64_t h = group.first_query; h < group.first_query + group.queries; ++h) {
        float* query = queries.data() + (b * a.heads + h) * dim;
        token.query(query, h);
        if (packs) hadamard(query, dim);
        as_stored(query, window.bits, dim, false);
        for (int64_t i = 0; i < dim; ++i) query[i] *= scale;
      }
      most = std::max(most, group.queries);
      const int64_t filled = std::min(place + 1, window.held);
      for (int64_t first = 0; first < filled; first += PIECE)
        tasks.push_back({b, g, first, std::min(first + PIECE, filled)});
    }
  const int64_t count = (int64_t)tasks.size(), each = most * (dim + 2);
  std::vector<float> parts(count * each);
  const auto part_of = [&](int64_t task) {
    float* memory = parts.data() + task * each;
    return Part{memory, memory + most, memory + 2 * most};
  };
  const int threads = count * PIECE < WORTH_SHARING ? 1 : a.threads;
  in_parallel(threads, count, [&](int, int64_t begin, int64_t end) {
    std::vector<float> memory(ROWS * dim + most * PIECE);
    for (int64_t t = begin; t < end; ++t) {
      const WindowGroup& group = groups[tasks[t].group];
      const WindowSlots& window = windows[group.window];
      const float* own = queries.data() + (tasks[t].row * a.heads + group.first_query) * dim;
      with_bits(window.bits, [&](auto known) {
        attend<known>(window, group, tasks[t], own, dim, part_of(t), memory.data());
      });
    }
  });
  std::vector<float> output(dim);
  for (int64_t t = 0; t < count;) {  // the parts of one KV head stand side by side
    const Task& first = tasks[t];
    const WindowGroup& group = groups[first.group];
    int64_t end = t;
    while (end < count && tasks[end].row == first.row && tasks[end].group == first.group) ++end;
    for (int64_t q = 0; q < group.queries; ++q) {
      float *out = output.data(), greatest = -INFINITY, sum = 0.f;
      for (int64_t p = t; p < end; ++p) greatest = std::max(greatest, part_of(p).most[q]);
      std::fill(out, out + dim, 0.f);
      for (int64_t p = t; p < end; ++p) {
        const Part part = part_of(p);
        const float weight = exp2_negative(part.most[q] - greatest);
        sum += weight * part.sum[q];
        SIMD for (int64_t i = 0; i < dim; ++i) out[i] += weight * part.values[q * dim + i];
      }
      for (int64_t i = 0; i < dim; ++i) out[i] /= sum;
      const int64_t bits = windows[group.window].bits;
      as_stored(out, bits, dim, true);
      if (bits < HALF) hadamard(out, dim);
      T* y = (T*)a.y + (first.row * a.heads + group.first_query + q) * dim;
      for (int64_t i = 0; i < dim; ++i) set(y[i], out[i]);
    }
    t = end;
  }
  for (int64_t b = 0; b < a.batch; ++b) a.seen[b] += 1;
}

struct RetentionArguments {
  const float* decays;  // (batch, KV heads, rates): logarithms
  float* state;         // (batch, KV heads, rates, dim, dim + 1), updated
  int64_t state_stride, rates;
};

static float elu_plus_one(float x) { return x > 0.f ? x + 1.f : std::exp(x); }

// One step of `Retention`: y are its features (batch, heads * rates * dim + KV heads * dim).
template <class T>
static void retain(const WindowStepArguments& a, const RetentionArguments& r, const WindowGroup* groups) {
  const int64_t dim = a.dim, width = dim + 1, features = (a.heads * r.rates + a.groups) * dim;
  std::vector<float> memory(2 * dim + width * 2);
  float *key = memory.data(), *value = key + dim, *query = value + width, *sums = query + dim;
  for (int64_t b = 0; b < a.batch; ++b) {
    const Token<T> token{a, b, 0};
    T* y = (T*)a.y + b * features;
    for (int64_t g = 0; g < a.groups; ++g) {
      const WindowGroup& group = groups[g];
      token.entry(key, value, g, false);
      for (int64_t i = 0; i < dim; ++i) {
        key[i] = elu_plus_one(key[i]);
        set(y[(a.heads * r.rates + g) * dim + i], value[i]);
      }
      value[dim] = 1.f;  // sums up the weights
      for (int64_t rate = 0; rate < r.rates; ++rate) {
        const int64_t place = g * r.rates + rate;
        const float decay = std::exp(r.decays[b * a.groups * r.rates + place]);
        float* state = r.state + b * r.state_stride + place * dim * width;
        for (int64_t n = 0; n < dim; ++n)
          SIMD for (int64_t i = 0; i < width; ++i) state[n * width + i] = decay * state[n * width + i] + key[n] * value[i];
        for (int64_t h = group.first_query; h < group.first_query + group.queries; ++h) {
          token.query(query, h);
          std::fill(sums, sums + width, 0.f);
          for (int64_t n = 0; n < dim; ++n) {
            const float weight = elu_plus_one(query[n]);
            SIMD for (int64_t i = 0; i < width; ++i) sums[i] += weight * state[n * width + i];
          }
          const float scale = sums[dim] == 0.f ? 1.f : 1.f / sums[dim];
          for (int64_t i = 0; i < dim; ++i) set(y[(h * r.rates + rate) * dim + i], scale * sums[i]);
        }
      }
    }
  }
}

struct HadamardArguments {
  const float* x;  // (rows, dim)
  float* y;        // likewise, without gaps
  int64_t x_stride, rows, dim;
  int32_t threads;
};

extern "C" {
int hadamard_rows(const HadamardArguments* a) {
  in_parallel(a->threads, a->rows, [&](int, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      float* y = a->y + row * a->dim;
      std::copy(a->x + row * a->x_stride, a->x + row * a->x_stride + a->dim, y);
      hadamard(y, a->dim);
    }
  });
  return 0;
}

int window_full(const WindowStepArguments* a, const WindowSlots* windows, const WindowGroup* groups) {
  for (int64_t b = 0; b < a->batch; ++b)
    for (int64_t g = 0; g < a->groups; ++g) {
      const WindowSlots& window = windows[groups[g].window];
      if (slot_of(a->seen[b], a->sinks, window.tokens) >= window.held) return 1;
    }
  return 0;
}

int window_step(const WindowStepArguments* a, const WindowSlots* windows, const WindowGroup* groups) {
  if (window_full(a, windows, groups)) return 1;
  a->half ? step<uint16_t>(*a, windows, groups) : step<float>(*a, windows, groups);
  return 0;
}

int retain_step(const WindowStepArguments* a, const RetentionArguments* r, const WindowGroup* groups) {
  a->half ? retain<uint16_t>(*a, *r, groups) : retain<float>(*a, *r, groups);
  return 0;
}

int window_begin(const WindowStepArguments* a, const WindowSlots* windows, const WindowGroup* groups) {
  a->half ? begin<uint16_t>(*a, windows, groups) : begin<float>(*a, windows, groups);
  return 0;
}
}
