// NEON of ARMv8.2 with its dot products of int8. This file and its parts may use nothing but intrinsics, <cstdint> and
// constexpr headers: any inline function of a common header that were compiled here could be the copy that the linker
// keeps for processors without the instructions.

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/kernels.h"
#include "ops/dims.h"

namespace calla {
namespace {

constexpr int kGroup = 64;

#include "backend/cpu/kernels_neon_vector.inc"

#include "backend/cpu/kernels_rows.inc"

#include "backend/cpu/kernels_any_width.inc"

// ---- activations

// Eight vectors of 4, elements of one parity → 32 bytes. Their values fit int8.
inline void store_half(const int32x4_t* v, int8_t* codes) {
  for (int i = 0; i < 2; ++i) {
    const int16x8_t low = vcombine_s16(vmovn_s32(v[4 * i]), vmovn_s32(v[4 * i + 1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(v[4 * i + 2]), vmovn_s32(v[4 * i + 3]));
    vst1q_s8(codes + 16 * i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }
}

void quantize(const float* x, int n, int8_t* codes, int8_t* rest, float* scales, float* sums) noexcept {
  const float steps = rest == nullptr ? 127 : 127 << kRestBits;
  for (int g = 0; g < n / kGroup; ++g, x += kGroup) {
    float32x4x2_t v[8];  // even elements, odd elements
    Vec top = set(0.0f);
    for (int i = 0; i < 8; ++i) {
      v[i] = vld2q_f32(x + 8 * i);
      top = most(top, most(vabsq_f32(v[i].val[0]), vabsq_f32(v[i].val[1])));
    }
    const float largest = vmaxvq_f32(top);
    const bool zero = !(largest >= kQuantZero);
    const float inverse = zero ? 0 : steps / largest;
    int32x4_t total = vdupq_n_s32(0);
    for (int odd = 0; odd < 2; ++odd) {
      int32x4_t code[8];
      for (int i = 0; i < 8; ++i) {
        code[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i].val[odd], inverse));
        total = vaddq_s32(total, code[i]);
      }
      const int at = g * kGroup + 32 * odd;
      if (rest != nullptr) {
        int32x4_t less[8];
        for (int i = 0; i < 8; ++i) {
          const int32x4_t all = code[i];
          code[i] = vrshrq_n_s32(all, kRestBits);
          less[i] = vsubq_s32(all, vshlq_n_s32(code[i], kRestBits));
        }
        store_half(less, rest + at);
      }
      store_half(code, codes + at);
    }
    scales[g] = zero ? 0 : largest / steps;
    sums[g] = scales[g] * static_cast<float>(vaddvq_s32(total));
  }
}

// ---- 4-bit weights, int8 activations. Codes of 0 to 15 are signed bytes, too.

// part[r][t][j] += the products of group g + j, j < n, of row r with token t, in lanes that are still to be added.
template <int R, int T>
inline void add_groups(const uint8_t* const* rows, const int8_t* const* codes, int g, int n, int32x4_t (*part)[T][4]) {
  for (int j = 0; j < n; ++j) {
    int8x16_t a[T][4];
    for (int t = 0; t < T; ++t) {
      for (int i = 0; i < 4; ++i) a[t][i] = vld1q_s8(codes[t] + (g + j) * kGroup + 16 * i);
    }
    for (int r = 0; r < R; ++r) {
      const uint8_t* bytes = rows[r] + (g + j) * (kGroup / 2);
      for (int i = 0; i < 2; ++i) {
        const uint8x16_t both = vld1q_u8(bytes + 16 * i);
        const int8x16_t even = vreinterpretq_s8_u8(low_nibbles(both)), odd = vreinterpretq_s8_u8(high_nibbles(both));
        for (int t = 0; t < T; ++t) {
          part[r][t][j] = vdotq_s32(part[r][t][j], even, a[t][i]);
          part[r][t][j] = vdotq_s32(part[r][t][j], odd, a[t][2 + i]);
        }
      }
    }
  }
}

// Lane j of products[r][t] is the product of group g + j, j < n, of row r with token t; groups past n give 0.
template <int R, int T, bool kRest>
inline void four_groups(const uint8_t* const* rows, const int8_t* const* codes, const int8_t* const* rest, int g, int n,
                        int32x4_t (*products)[T]) {
  int32x4_t part[R][T][4] = {};
  add_groups<R, T>(rows, codes, g, n, part);
  if (kRest) {
    for (auto& row : part) {
      for (auto& token : row) {
        for (int32x4_t& p : token) p = vshlq_n_s32(p, kRestBits);
      }
    }
    add_groups<R, T>(rows, rest, g, n, part);
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) {
      const int32x4_t* p = part[r][t];
      products[r][t] = vpaddq_s32(vpaddq_s32(p[0], p[1]), vpaddq_s32(p[2], p[3]));
    }
  }
}

// R rows from `row` on and T tokens.
template <int R, int T, bool kRest>
inline void gemv_block(const WeightRows& w, int row, const QuantRows& x, const int32_t* index, float* y,
                       int64_t y_stride) {
  const uint8_t *rows[R], *scales[R], *biases[R];
  for (int r = 0; r < R; ++r) {
    rows[r] = w.weight + (row + r) * w.weight_stride;
    scales[r] = w.scales + (row + r) * w.group_stride;
    biases[r] = w.biases + (row + r) * w.group_stride;
  }
  const int8_t *codes[T], *rest[T];
  const float *steps[T], *sums[T];
  for (int t = 0; t < T; ++t) {
    codes[t] = x.codes + index[t] * x.code_stride;
    rest[t] = kRest ? x.rest + index[t] * x.code_stride : nullptr;
    steps[t] = x.scales + index[t] * x.group_stride;
    sums[t] = x.sums + index[t] * x.group_stride;
  }
  Vec sum[R][T] = {};
  // Four groups with their scales; `floats` and `bf16s` load them.
  const auto scale_groups = [&](int g, int n, auto floats, auto bf16s) {
    int32x4_t products[R][T];
    four_groups<R, T, kRest>(rows, codes, rest, g, n, products);
    for (int t = 0; t < T; ++t) {
      const Vec step = floats(steps[t] + g), total = floats(sums[t] + g);
      for (int r = 0; r < R; ++r) {
        const Vec factor = mul(bf16s(scales[r] + 2 * g), step);
        sum[r][t] = mul_add(vcvtq_f32_s32(products[r][t]), factor, sum[r][t]);
        sum[r][t] = mul_add(bf16s(biases[r] + 2 * g), total, sum[r][t]);
      }
    }
  };
  int g = 0;
  for (; g + 4 <= w.groups; g += 4) scale_groups(g, 4, load, load_bf16);
  if (const int n = w.groups - g; n > 0) {
    scale_groups(
        g, n, [n](const float* p) { return load_first(p, n); },
        [n](const uint8_t* p) { return load_bf16_first(p, n); });
  }
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) y[t * y_stride + row + r] = sum_of(sum[r][t]);
  }
}

template <int T, bool kRest>
inline void gemv_tokens(const WeightRows& w, const QuantRows& x, const int32_t* index, float* y, int64_t y_stride) {
  int r = 0;
  for (; r + 2 <= w.rows; r += 2) gemv_block<2, T, kRest>(w, r, x, index, y, y_stride);
  if (r < w.rows) gemv_block<1, T, kRest>(w, r, x, index, y, y_stride);
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

// A block is [quad][row][4], as WeightTile says.
inline void expand_block(const uint8_t* const* rows, int64_t at, uint8_t* codes) {
  for (int i = 0; i < kBlockRows; i += 4) {
    for (int half = 0; half < 2; ++half) {
      uint32x4_t v[4];  // four quads of a row
      for (int r = 0; r < 4; ++r) v[r] = vreinterpretq_u32_u8(vld1q_u8(rows[i + r] + at + 16 * half));
      const uint32x4x2_t a = vzipq_u32(v[0], v[2]), b = vzipq_u32(v[1], v[3]);
      const uint32x4x2_t low = vzipq_u32(a.val[0], b.val[0]), high = vzipq_u32(a.val[1], b.val[1]);
      const uint32x4_t quads[4] = {low.val[0], low.val[1], high.val[0], high.val[1]};  // a quad of four rows
      for (int d = 0; d < 4; ++d) {
        uint8_t* to = codes + ((4 * half + d) * kBlockRows + i) * 4;
        vst1q_u8(to, low_nibbles(vreinterpretq_u8_u32(quads[d])));
        vst1q_u8(to + 8 * kBlockRows * 4, high_nibbles(vreinterpretq_u8_u32(quads[d])));
      }
    }
  }
}

// Every four rows of a quad of codes meet one quad of activations, a lane of theirs.
template <int T>
struct Products {
  int32x4_t sums[T][kBlockRows / 4] = {};
  int32x4_t of(int t, int i) const { return sums[t][i]; }
};
template <int T>
inline void add_products(const uint8_t* codes, const int8_t* const* x, Products<T>* products) {
  auto& sums = products->sums;
  for (int c = 0; c < kGroup; c += 16, codes += 16 * kBlockRows) {
    int8x16_t a[T];
    for (int t = 0; t < T; ++t) a[t] = vld1q_s8(x[t] + c);
    for (int i = 0; i < 4; ++i) {
      int8x16_t w[4];
      for (int d = 0; d < 4; ++d) w[d] = vreinterpretq_s8_u8(vld1q_u8(codes + (d * kBlockRows + 4 * i) * 4));
      for (int t = 0; t < T; ++t) {
        sums[t][i] = vdotq_laneq_s32(sums[t][i], w[0], a[t], 0);
        sums[t][i] = vdotq_laneq_s32(sums[t][i], w[1], a[t], 1);
        sums[t][i] = vdotq_laneq_s32(sums[t][i], w[2], a[t], 2);
        sums[t][i] = vdotq_laneq_s32(sums[t][i], w[3], a[t], 3);
      }
    }
  }
}

#include "backend/cpu/kernels_neon_tile.inc"

// ---- convolution

void conv_silu(float* x, const float* conv, float* oldest, const float* middle, const float* newest, int n) noexcept {
  int c = 0;
  for (; c + kVec <= n; c += kVec) {
    const float32x4x4_t tap = vld4q_f32(conv + kConvTaps * c);  // a tap of four channels in each
    const Vec now = load(x + c);
    Vec sum = mul(tap.val[0], load(oldest + c));
    sum = mul_add(tap.val[1], load(middle + c), sum);
    sum = mul_add(tap.val[2], load(newest + c), sum);
    sum = mul_add(tap.val[3], now, sum);
    store(oldest + c, now);
    store(x + c, silu_of(sum));
  }
  for (; c < n; ++c) {
    const float* tap = conv + kConvTaps * c;
    const float sum = tap[0] * oldest[c] + tap[1] * middle[c] + tap[2] * newest[c] + tap[3] * x[c];
    oldest[c] = x[c];
    store_first(x + c, 1, silu_of(set(sum)));
  }
}

// ---- attention

// acc[r] += p[r] · v for four rows.
inline void four_rows(Vec p, Vec v, Vec* acc) {
  acc[0] = vfmaq_laneq_f32(acc[0], v, p, 0);
  acc[1] = vfmaq_laneq_f32(acc[1], v, p, 1);
  acc[2] = vfmaq_laneq_f32(acc[2], v, p, 2);
  acc[3] = vfmaq_laneq_f32(acc[3], v, p, 3);
}

// Two positions at a time for the scores, eight columns at a time for the values: 16 chains each.
void attend_page(const float* q, const uint16_t* keys, const uint16_t* values, const uint16_t* next_keys,
                 const int32_t* visible, int span, float* peak, float* total, float* o, float* scores) noexcept {
  for (int t = 0; t < span; t += 2) {
    const uint16_t* key = keys + t * kHeadDim;
    Vec sum[2][kQueryLanes] = {};
    for (int d = 0; d < kHeadDim; d += kVec) {
      const Vec k0 = wide_bf16(vld1_u16(key + d)), k1 = wide_bf16(vld1_u16(key + kHeadDim + d));
      for (int r = 0; r < kQueryLanes; ++r) {
        const Vec row = load(q + r * kHeadDim + d);
        sum[0][r] = mul_add(k0, row, sum[0][r]);
        sum[1][r] = mul_add(k1, row, sum[1][r]);
      }
    }
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < kQueryLanes; r += kVec) store(scores + (t + i) * kQueryLanes + r, sums_of(sum[i] + r));
    }
  }
  Vec shrink[kQueryLanes / kVec];
  for (int i = 0; i < kQueryLanes / kVec; ++i) {
    const int at = kVec * i;
    shrink[i] = softmax_lanes(visible + at, span, peak + at, total + at, scores + at, kQueryLanes);
  }
  float factor[kQueryLanes];
  for (int i = 0; i < kQueryLanes / kVec; ++i) store(factor + kVec * i, shrink[i]);
  for (int d = 0; d < kHeadDim; d += 2 * kVec) {
    Vec acc[2][kQueryLanes];
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < kQueryLanes; ++r) {
        acc[i][r] = vmulq_n_f32(load(o + r * kHeadDim + d + kVec * i), factor[r]);
      }
    }
    for (int t = 0; t < span; ++t) {
      __builtin_prefetch(next_keys + (d / 8 * 64 + t) * 8);
      const uint16x8_t eight = vld1q_u16(values + t * kHeadDim + d);
      const Vec v[2] = {wide_bf16(vget_low_u16(eight)), wide_bf16(vget_high_u16(eight))};
      for (int half = 0; half < 2; ++half) {
        const Vec p = load(scores + t * kQueryLanes + kVec * half);
        for (int i = 0; i < 2; ++i) four_rows(p, v[i], acc[i] + kVec * half);
      }
    }
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < kQueryLanes; ++r) store(o + r * kHeadDim + d + kVec * i, acc[i][r]);
    }
  }
}

}  // namespace

const KernelTable kNeonKernels = {
    .isa = "neon",
    .tile_rows = kBlockRows,
    .tile_groups = kTileBlocks,
    .rmsnorm = rmsnorm,
    .add_rmsnorm = add_rmsnorm,
    .gated_rmsnorm = gated_rmsnorm,
    .l2norm = l2norm,
    .axpy = axpy,
    .silu_mul = silu_mul,
    .sigmoid_mul = sigmoid_mul,
    .rope = rope,
    .to_bf16 = to_bf16,
    .quantize = quantize,
    .gemv_bf16 = gemv<Bf16Row>,
    .gemv_q8 = gemv<Q8Row>,
    .gemv_q4 = gemv<Q4Row>,
    .expand_bf16 = expand<Bf16Row>,
    .expand_q8 = expand<Q8Row>,
    .expand_q4 = expand<Q4Row>,
    .dots = dots,
    .gemv_q4_int8 = gemv_q4_int8,
    .expand_tile = expand_tile,
    .tile_product = tile_product,
    .conv_silu = conv_silu,
    .delta_scan = delta_scan,
    .attend_page = attend_page,
    .attend_strip = attend_strip,
    .exp = exp_all,
    .sigmoid = sigmoid_all,
};

}  // namespace calla
