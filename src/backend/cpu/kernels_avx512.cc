// AVX-512 with VNNI, VBMI and GFNI: the kernels that gain from it. The rest of the table is AVX2's. As in every file of
// one instruction set, nothing but intrinsics, <cstdint> and constexpr headers may be used here.

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels.h"
#include "ops/dims.h"

namespace calla {
namespace {

constexpr int kGroup = 64;

using Vec = __m512;
constexpr int kVec = 16;
using Int16 = __m512i;

inline Int16 load_bytes(const void* p) {
  return _mm512_loadu_si512(p);
}
inline Vec set(float v) {
  return _mm512_set1_ps(v);
}
// Lanes [0, n) of a mask are set, for any n.
inline __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}
// n bf16 numbers → f32, zeros after them: their bits are the upper halves.
inline Vec load_bf16(const uint8_t* p, __mmask16 lanes) {
  const Int16 bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
inline Int16 low_nibbles(Int16 bytes) {
  return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
}
inline Int16 high_nibbles(Int16 bytes) {
  // A matrix of bits that moves bits 4–7 to 0–3: one instruction instead of a shift and a mask.
  return _mm512_gf2p8affine_epi64_epi8(bytes, _mm512_set1_epi64(0x1020408000000000), 0);
}

// ---- what is written for every width

constexpr int kStripRows = 12;  // a multiple of the four that follow; 24 chains hide the latency of FMA

inline Vec load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void store(float* p, Vec v) {
  _mm512_storeu_ps(p, v);
}
inline Vec add(Vec a, Vec b) {
  return _mm512_add_ps(a, b);
}
inline Vec sub(Vec a, Vec b) {
  return _mm512_sub_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
  return _mm512_mul_ps(a, b);
}
inline Vec most(Vec a, Vec b) {
  return _mm512_max_ps(a, b);
}
inline Vec mul_add(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline Vec counts_of(const int32_t* p) {
  return _mm512_cvtepi32_ps(load_bytes(p));
}
inline Vec pick_less(Vec a, Vec b, Vec x, Vec y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
// As in kernels_rows.inc: 2^n · e^r, e^r by its Taylor polynomial of degree 7.
inline Vec exp_of(Vec x) {
  const Vec t = most(set(-87.3f), _mm512_min_ps(set(88.0f), x));
  const Vec n = _mm512_roundscale_ps(mul(t, set(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vec r = mul_add(n, set(2.12194440e-4f), mul_add(n, set(-0.693359375f), t));
  constexpr float kTerms[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  Vec p = set(1.0f / 5040);
  for (const float term : kTerms) p = mul_add(p, r, set(term));
  return pick_less(x, set(-87.3f), set(0.0f), _mm512_scalef_ps(p, n));
}

#include "backend/cpu/kernels_any_width.inc"

#include "backend/cpu/kernels_avx512_page.inc"

// ---- activations

// Four vectors of 16 → 64 bytes, even elements first, then the odd ones. Their values fit int8.
inline Int16 turned_bytes(const Int16* v) {
  alignas(64) static constexpr auto kOrder = [] {
    struct {
      uint8_t at[kGroup];
    } order{};
    for (int i = 0; i < kGroup; ++i) order.at[i] = static_cast<uint8_t>(2 * i % kGroup + 2 * i / kGroup);
    return order;
  }();
  Int16 bytes = _mm512_setzero_si512();
  for (int i = 0; i < 4; ++i) {
    const Int16 four = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(v[i]));
    bytes = _mm512_mask_shuffle_i32x4(bytes, static_cast<__mmask16>(15 << (4 * i)), four, four, 0);
  }
  return _mm512_permutexvar_epi8(_mm512_load_si512(kOrder.at), bytes);
}

void quantize(const float* x, int n, int8_t* codes, int8_t* rest, float* scales, float* sums) noexcept {
  const float steps = rest == nullptr ? 127 : 127 << kRestBits;
  for (int g = 0; g < n / kGroup; ++g, x += kGroup) {
    Vec v[4], top = _mm512_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      v[i] = load(x + 16 * i);
      top = _mm512_max_ps(top, _mm512_abs_ps(v[i]));
    }
    const float largest = _mm512_reduce_max_ps(top);
    const bool zero = !(largest >= kQuantZero);
    const Vec inverse = set(zero ? 0 : steps / largest);
    Int16 sum = _mm512_setzero_si512(), code[4];
    for (int i = 0; i < 4; ++i) {
      code[i] = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse));
      sum = _mm512_add_epi32(sum, code[i]);
    }
    if (rest != nullptr) {
      Int16 less[4];
      for (int i = 0; i < 4; ++i) {
        const Int16 all = code[i];
        code[i] = _mm512_srai_epi32(_mm512_add_epi32(all, _mm512_set1_epi32(1 << (kRestBits - 1))), kRestBits);
        less[i] = _mm512_sub_epi32(all, _mm512_slli_epi32(code[i], kRestBits));
      }
      _mm512_storeu_si512(rest + g * kGroup, turned_bytes(less));
    }
    _mm512_storeu_si512(codes + g * kGroup, turned_bytes(code));
    scales[g] = zero ? 0 : largest / steps;
    sums[g] = scales[g] * static_cast<float>(_mm512_reduce_add_epi32(sum));
  }
}

// ---- f32 products

// R expanded rows and T tokens; up to sixteen chains hide the latency of FMA.
template <int R, int T>
inline void dots_block(const float* w, const float* x, int64_t x_stride, const int32_t* index, int n, float* y,
                       int64_t y_stride) {
  Vec sum[R][T] = {};
  const float* row[T];
  for (int t = 0; t < T; ++t) row[t] = x + index[t] * x_stride;
  for (int c = 0; c < n; c += 16) {
    Vec v[R];
    for (int r = 0; r < R; ++r) v[r] = load(w + r * n + c);
    for (int t = 0; t < T; ++t) {
      const Vec a = load(row[t] + c);
      for (int r = 0; r < R; ++r) sum[r][t] = _mm512_fmadd_ps(v[r], a, sum[r][t]);
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) y[t * y_stride + r] = _mm512_reduce_add_ps(sum[r][t]);
  }
}

template <int R>
inline void dots_rows(const float* w, const float* x, int64_t x_stride, const int32_t* index, int count, int n,
                      float* y, int64_t y_stride) {
  int t = 0;
  for (; t + 4 <= count; t += 4) dots_block<R, 4>(w, x, x_stride, index + t, n, y + t * y_stride, y_stride);
  for (; t < count; ++t) dots_block<R, 1>(w, x, x_stride, index + t, n, y + t * y_stride, y_stride);
}

void dots(const float* w, int rows, const float* x, int64_t x_stride, const int32_t* index, int count, int n, float* y,
          int64_t y_stride) noexcept {
  switch (rows) {
    case 1:
      return dots_rows<1>(w, x, x_stride, index, count, n, y, y_stride);
    case 2:
      return dots_rows<2>(w, x, x_stride, index, count, n, y, y_stride);
    case 3:
      return dots_rows<3>(w, x, x_stride, index, count, n, y, y_stride);
    default:
      return dots_rows<4>(w, x, x_stride, index, count, n, y, y_stride);
  }
}

// ---- 4-bit weights, int8 activations, straight from the nibbles

// 32 bytes, and 32 more `apart` bytes on if there is a second group.
template <bool kTwo>
inline Int16 two_halves(const int8_t* p, int apart) {
  const auto half = [](const int8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); };
  const Int16 first = _mm512_zextsi256_si512(half(p));
  return kTwo ? _mm512_inserti64x4(first, half(p + apart), 1) : first;
}

// R rows of weights and T tokens. A vector of 64 bytes holds the nibbles of two groups: lanes 0–7 of a product are the
// first, 8–15 the second.
template <int R, int T, bool kRest>
inline void gemv_rows(const WeightRows& w, int row, const QuantRows& x, const int32_t* index, float* y,
                      int64_t y_stride) {
  const uint8_t* bytes = w.weight + row * w.weight_stride;
  const uint8_t* scales = w.scales + row * w.group_stride;
  const uint8_t* biases = w.biases + row * w.group_stride;
  const int8_t *codes[T], *rest[T];
  for (int t = 0; t < T; ++t) codes[t] = x.codes + index[t] * x.code_stride;
  for (int t = 0; t < T; ++t) rest[t] = kRest ? x.rest + index[t] * x.code_stride : nullptr;
  Vec sum[R][T] = {};
  for (int first = 0; first < w.groups; first += 16) {
    const int groups = w.groups - first < 16 ? w.groups - first : 16;
    const __mmask16 lanes = first_lanes(groups);
    Vec factor[R][T];
    for (int t = 0; t < T; ++t) {
      const int64_t at = index[t] * x.group_stride + first;
      const Vec steps = _mm512_maskz_loadu_ps(lanes, x.scales + at), sums = _mm512_maskz_loadu_ps(lanes, x.sums + at);
      for (int r = 0; r < R; ++r) {
        const int64_t from = r * w.group_stride + 2 * first;
        factor[r][t] = mul(load_bf16(scales + from, lanes), steps);
        sum[r][t] = mul_add(load_bf16(biases + from, lanes), sums, sum[r][t]);
      }
    }
    Int16 pair = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const auto groups_at = [&]<bool kTwo>(int g) {
      Int16 even[T], odd[T], rest_even[T], rest_odd[T];
      for (int t = 0; t < T; ++t) {
        even[t] = two_halves<kTwo>(codes[t] + g * kGroup, kGroup);
        odd[t] = two_halves<kTwo>(codes[t] + g * kGroup + kGroup / 2, kGroup);
        if (kRest) rest_even[t] = two_halves<kTwo>(rest[t] + g * kGroup, kGroup);
        if (kRest) rest_odd[t] = two_halves<kTwo>(rest[t] + g * kGroup + kGroup / 2, kGroup);
      }
      for (int r = 0; r < R; ++r) {
        const uint8_t* at = bytes + r * w.weight_stride + g * (kGroup / 2);
        _mm_prefetch(reinterpret_cast<const char*>(at + R * w.weight_stride), _MM_HINT_T0);
        const Int16 both = kTwo ? load_bytes(at) : _mm512_maskz_loadu_epi64(0x0f, at);
        const Int16 low = low_nibbles(both), high = high_nibbles(both);
        for (int t = 0; t < T; ++t) {
          Int16 product = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, even[t]);
          product = _mm512_dpbusd_epi32(product, high, odd[t]);
          if (kRest) {
            product = _mm512_dpbusd_epi32(_mm512_slli_epi32(product, kRestBits), low, rest_even[t]);
            product = _mm512_dpbusd_epi32(product, high, rest_odd[t]);
          }
          sum[r][t] = mul_add(_mm512_cvtepi32_ps(product), _mm512_permutexvar_ps(pair, factor[r][t]), sum[r][t]);
        }
      }
      pair = _mm512_add_epi32(pair, _mm512_set1_epi32(2));
    };
    int g = first;
    for (; g + 2 <= first + groups; g += 2) groups_at.template operator()<true>(g);
    if (g < first + groups) groups_at.template operator()<false>(g);
  }
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) y[t * y_stride + row + r] = _mm512_reduce_add_ps(sum[r][t]);
  }
}

template <int T, bool kRest>
inline void gemv_tokens(const WeightRows& w, const QuantRows& x, const int32_t* index, float* y, int64_t y_stride) {
  constexpr int kRowsAtOnce = 8;
  int r = 0;
  for (; r + kRowsAtOnce <= w.rows; r += kRowsAtOnce) gemv_rows<kRowsAtOnce, T, kRest>(w, r, x, index, y, y_stride);
  for (; r < w.rows; ++r) gemv_rows<1, T, kRest>(w, r, x, index, y, y_stride);
}

template <bool kRest>
inline void gemv_all(const WeightRows& w, const QuantRows& x, const int32_t* index, int count, float* y,
                     int64_t y_stride) {
  int t = 0;
  for (; t + 2 <= count; t += 2) gemv_tokens<2, kRest>(w, x, index + t, y + t * y_stride, y_stride);
  if (t < count) gemv_tokens<1, kRest>(w, x, index + t, y + t * y_stride, y_stride);
}

void gemv_q4_int8(const WeightRows& w, const QuantRows& x, const int32_t* index, int count, float* y,
                  int64_t y_stride) noexcept {
  x.rest == nullptr ? gemv_all<false>(w, x, index, count, y, y_stride)
                    : gemv_all<true>(w, x, index, count, y, y_stride);
}

// ---- tiles of 32 rows by 8 groups

#include "backend/cpu/kernels_ahead.inc"

constexpr int kRows = 2 * kBlockRows;
constexpr int kGroups = kTileBlocks / 2;

// Four vectors of 4 × 4 dwords in each of their 128-bit lanes, turned lane by lane.
inline void turn_lanes(Int16* v) {
  const Int16 a0 = _mm512_unpacklo_epi32(v[0], v[1]), a1 = _mm512_unpackhi_epi32(v[0], v[1]);
  const Int16 b0 = _mm512_unpacklo_epi32(v[2], v[3]), b1 = _mm512_unpackhi_epi32(v[2], v[3]);
  v[0] = _mm512_unpacklo_epi64(a0, b0);
  v[1] = _mm512_unpackhi_epi64(a0, b0);
  v[2] = _mm512_unpacklo_epi64(a1, b1);
  v[3] = _mm512_unpackhi_epi64(a1, b1);
}

// One group of 16 rows, `stride` bytes apart: nibbles → [quad][row][4].
inline void expand_block(const uint8_t* rows, int64_t stride, uint8_t (*out)[kBlockRows][4]) {
  const auto half = [](const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); };
  Int16 v[8];
  for (int i = 0; i < 8; ++i) {
    const uint8_t* row = rows + i * stride;
    v[i] = _mm512_inserti64x4(_mm512_castsi256_si512(half(row)), half(row + 8 * stride), 1);
  }
  turn_lanes(v);
  turn_lanes(v + 4);
  // Of v[d] and v[4 + d], lanes 0 and 2 hold quad d of all rows, lanes 1 and 3 quad 4 + d.
  const Int16 first = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13),
              second = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
  for (int d = 0; d < 4; ++d) {
    const Int16 a = _mm512_permutex2var_epi64(v[d], first, v[4 + d]);
    const Int16 b = _mm512_permutex2var_epi64(v[d], second, v[4 + d]);
    _mm512_store_si512(out[d], low_nibbles(a));
    _mm512_store_si512(out[4 + d], low_nibbles(b));
    _mm512_store_si512(out[8 + d], high_nibbles(a));
    _mm512_store_si512(out[12 + d], high_nibbles(b));
  }
}

// Scales or biases of 16 rows × `groups` groups, up to 8, → f32 [group][row], every second row of `out`; zeros for the
// groups that are missing.
inline void turn_bf16(const uint8_t* rows, int64_t stride, int groups, float (*out)[kBlockRows]) {
  if (groups == 1 && stride == 2) return store(out[0], load_bf16(rows, 0xffff));  // neighbours
  const auto there = static_cast<__mmask8>((1 << groups) - 1);
  const auto part = [&](int r) { return _mm_maskz_loadu_epi16(there, rows + r * stride); };
  Int16 v[4];
  for (int i = 0; i < 4; ++i) {
    const Int16 two = _mm512_inserti32x4(_mm512_castsi128_si512(part(i)), part(i + 4), 1);
    v[i] = _mm512_inserti32x4(_mm512_inserti32x4(two, part(i + 8), 2), part(i + 12), 3);
  }
  turn_lanes(v);
  for (int d = 0; d < 4; ++d) {
    _mm512_store_si512(out[4 * d], _mm512_slli_epi32(v[d], 16));
    _mm512_store_si512(out[4 * d + 2], _mm512_and_si512(v[d], _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
}

// Rows that are missing, as repetitions of the last one.
struct Padded {
  uint8_t weight[kRows][kGroups * kGroup / 2], scales[kRows][2 * kGroups], biases[kRows][2 * kGroups];

  explicit Padded(const WeightRows& w) {
    for (int i = 0; i < kRows; ++i) {
      const int64_t r = i < w.rows ? i : w.rows - 1;
      __builtin_memcpy(weight[i], w.weight + r * w.weight_stride, static_cast<unsigned>(w.groups * kGroup / 2));
      __builtin_memcpy(scales[i], w.scales + r * w.group_stride, static_cast<unsigned>(2 * w.groups));
      __builtin_memcpy(biases[i], w.biases + r * w.group_stride, static_cast<unsigned>(2 * w.groups));
    }
  }
  WeightRows all(int groups) const {
    return {weight[0], scales[0], biases[0], sizeof weight[0], sizeof scales[0], kRows, groups};
  }
};

// 32 rows of any number of groups.
inline void expand_rows(const WeightRows& w, WeightTile* tile) {
  for (int half = 0; half < 2; ++half) {
    const int64_t row = kBlockRows * half;
    const uint8_t* codes = w.weight + row * w.weight_stride;
    for (int g = 0; g < w.groups; ++g) {
      expand_block(codes + g * (kGroup / 2), w.weight_stride, tile->codes[2 * g + half]);
    }
    turn_bf16(w.scales + row * w.group_stride, w.group_stride, w.groups, tile->scales + half);
    turn_bf16(w.biases + row * w.group_stride, w.group_stride, w.groups, tile->biases + half);
  }
}

void expand_tile(const WeightRows& w, WeightTile* tile) noexcept {
  if (w.rows == kRows) return expand_rows(w, tile);
  expand_rows(Padded(w).all(w.groups), tile);
}

// acc[t][i] += the products of group g of 32 rows and T tokens. Lane r of a vector belongs to row r: every quad of
// codes meets one broadcast quad of activations.
template <int T>
inline void add_products(const WeightTile& tile, int g, const int8_t* const* codes, Int16 (*acc)[2]) {
  // Rolled, the compiler copies every accumulator in each step.
#pragma GCC unroll 16
  for (int d = 0; d < 16; ++d) {
    const Int16 w0 = _mm512_load_si512(tile.codes[2 * g][d]), w1 = _mm512_load_si512(tile.codes[2 * g + 1][d]);
    for (int t = 0; t < T; ++t) {
      int32_t four;
      __builtin_memcpy(&four, codes[t] + g * kGroup + 4 * d, 4);
      const Int16 a = _mm512_set1_epi32(four);
      acc[t][0] = _mm512_dpbusd_epi32(acc[t][0], w0, a);
      acc[t][1] = _mm512_dpbusd_epi32(acc[t][1], w1, a);
    }
  }
}

// Both planes of so many tokens share the loads of the weights, and have sums of their own that fill the registers.
constexpr int kPlanesTogether = 6;

// 32 rows × T tokens. A group's sum of 64 products is exact in int32, of two planes, too.
template <int T, bool kRest>
inline void tile_block(const WeightTile& tile, int rows, int groups, const QuantRows& x, int first_group,
                       const int32_t* index, bool first, float* y, int64_t y_stride, Ahead& ahead) {
  const __mmask16 lanes[2] = {first_lanes(rows), first_lanes(rows - kBlockRows)};
  constexpr int kPlanes = kRest ? 2 : 1;
  constexpr bool kTogether = T <= kPlanesTogether;
  const int8_t* codes[kPlanes * T];  // first those that count more
  const float *scales[T], *sums[T];
  Vec out[T][2];
  for (int t = 0; t < T; ++t) {
    codes[t] = x.codes + index[t] * x.code_stride + int64_t{first_group} * kGroup;
    if constexpr (kRest) codes[T + t] = x.rest + (codes[t] - x.codes);
    scales[t] = x.scales + index[t] * x.group_stride + first_group;
    sums[t] = x.sums + index[t] * x.group_stride + first_group;
    for (int i = 0; i < 2; ++i) {
      out[t][i] = first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes[i], y + t * y_stride + kBlockRows * i);
    }
  }
  for (int g = 0; g < groups; ++g) {
    constexpr int kSums = kTogether ? kPlanes * T : T;
    Int16 acc[kSums][2] = {};
    add_products<kSums>(tile, g, codes, acc);
    if constexpr (kRest) {
      for (int t = 0; t < T; ++t) {
        for (int i = 0; i < 2; ++i) {
          acc[t][i] = _mm512_slli_epi32(acc[t][i], kRestBits);
          if constexpr (kTogether) acc[t][i] = _mm512_add_epi32(acc[t][i], acc[T + t][i]);
        }
      }
      if constexpr (!kTogether) add_products<T>(tile, g, codes + T, acc);
    }
    ahead.step();
    for (int t = 0; t < T; ++t) {
      const Vec step = set(scales[t][g]), sum = set(sums[t][g]);
      for (int i = 0; i < 2; ++i) {
        const Vec product = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[t][i]), step);
        out[t][i] = _mm512_fmadd_ps(product, _mm512_load_ps(tile.scales[2 * g + i]), out[t][i]);
        out[t][i] = _mm512_fmadd_ps(_mm512_load_ps(tile.biases[2 * g + i]), sum, out[t][i]);
      }
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int i = 0; i < 2; ++i) _mm512_mask_storeu_ps(y + t * y_stride + kBlockRows * i, lanes[i], out[t][i]);
  }
}

using TileBlock = void (*)(const WeightTile& tile, int rows, int groups, const QuantRows& x, int first_group,
                           const int32_t* index, bool first, float* y, int64_t y_stride, Ahead& ahead);
constexpr int kMostTokens = 8;
template <bool kRest>
constexpr TileBlock kTileBlockOf[kMostTokens] = {tile_block<1, kRest>, tile_block<2, kRest>, tile_block<3, kRest>,
                                                 tile_block<4, kRest>, tile_block<5, kRest>, tile_block<6, kRest>,
                                                 tile_block<7, kRest>, tile_block<8, kRest>};

// Blocks as equal as possible: 9 tokens as 5 + 4, since few tokens leave the chains of sums waiting.
void tile_product(const WeightTile& tile, int rows, int groups, const QuantRows& x, int first_group,
                  const int32_t* index, int count, bool first, float* y, int64_t y_stride) noexcept {
  int blocks = (count + kMostTokens - 1) / kMostTokens;
  const TileBlock* const block_of = x.rest == nullptr ? kTileBlockOf<false> : kTileBlockOf<true>;
  for (Ahead ahead(tile.next, blocks * groups); blocks > 0; --blocks) {
    const int tokens = count / blocks;
    block_of[tokens - 1](tile, rows, groups, x, first_group, index, first, y, y_stride, ahead);
    index += tokens;
    y += tokens * y_stride;
    count -= tokens;
  }
}

void exp_all(const float* x, int n, float* y) noexcept {
  for (int i = 0; i < n; i += kVec) {
    const __mmask16 lanes = first_lanes(n - i);
    _mm512_mask_storeu_ps(y + i, lanes, exp_of(_mm512_maskz_loadu_ps(lanes, x + i)));
  }
}

}  // namespace

void use_avx512_kernels(KernelTable* table) noexcept {
  table->isa = "avx512";
  table->tile_rows = kRows;
  table->tile_groups = kGroups;
  table->quantize = quantize;
  table->dots = dots;
  table->gemv_q4_int8 = gemv_q4_int8;
  table->expand_tile = expand_tile;
  table->tile_product = tile_product;
  table->delta_scan = delta_scan;
  table->attend_page = attend_page;
  table->attend_strip = attend_strip;
  table->exp = exp_all;
}

}  // namespace calla
