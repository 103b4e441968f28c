// AVX2, FMA and F16C. This file and its parts may use nothing but intrinsics, <cstdint> and constexpr headers: any
// inline function of a common header that were compiled here could be the copy that the linker keeps for processors
// without AVX2.

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels.h"
#include "ops/dims.h"

namespace calla {
namespace {

constexpr int kGroup = 64;

#include "backend/cpu/kernels_avx2_vector.inc"

#include "backend/cpu/kernels_rows.inc"

#include "backend/cpu/kernels_avx2_matmul.inc"

// ---- convolution

void conv_silu(float* x, const float* conv, float* oldest, const float* middle, const float* newest, int n) noexcept {
  int c = 0;
  for (; c + 8 <= n; c += 8) {
    // Taps of eight channels, [channel][4] → [tap][channel].
    const float* tap = conv + 4 * c;
    const Vec l0 = load(tap), l1 = load(tap + 8), l2 = load(tap + 16), l3 = load(tap + 24);
    const Vec a0 = _mm256_permute2f128_ps(l0, l2, 0x20), a1 = _mm256_permute2f128_ps(l0, l2, 0x31);
    const Vec a2 = _mm256_permute2f128_ps(l1, l3, 0x20), a3 = _mm256_permute2f128_ps(l1, l3, 0x31);
    const Vec b0 = _mm256_unpacklo_ps(a0, a1), b1 = _mm256_unpacklo_ps(a2, a3);
    const Vec b2 = _mm256_unpackhi_ps(a0, a1), b3 = _mm256_unpackhi_ps(a2, a3);
    const Vec now = load(x + c);
    Vec sum = _mm256_mul_ps(_mm256_shuffle_ps(b0, b1, 0x44), load(oldest + c));
    sum = _mm256_fmadd_ps(_mm256_shuffle_ps(b0, b1, 0xee), load(middle + c), sum);
    sum = _mm256_fmadd_ps(_mm256_shuffle_ps(b2, b3, 0x44), load(newest + c), sum);
    sum = _mm256_fmadd_ps(_mm256_shuffle_ps(b2, b3, 0xee), now, sum);
    store(oldest + c, now);
    store(x + c, silu_of(sum));
  }
  for (; c < n; ++c) {
    const float* tap = conv + 4 * c;
    const float sum = tap[0] * oldest[c] + tap[1] * middle[c] + tap[2] * newest[c] + tap[3] * x[c];
    oldest[c] = x[c];
    x[c] = _mm256_cvtss_f32(silu_of(set(sum)));
  }
}

// ---- delta rule and attention

#include "backend/cpu/kernels_any_width.inc"

// Into L2: more lines may be on their way there than to L1.
inline void prefetch(const uint16_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

// Lines are asked for one by one between the products, values while scores are computed and the next keys after them:
// bursts would be waited for.
void attend_page(const float* q, const uint16_t* keys, const uint16_t* values, const uint16_t* next_keys,
                 const int32_t* visible, int span, float* peak, float* total, float* o, float* scores) noexcept {
  for (int t = 0; t < span; ++t) {
    const uint16_t* key = keys + t * kHeadDim;
    Vec sum[8] = {};
    for (int d = 0; d < kHeadDim; d += 8) {
      if (d % 32 == 0) prefetch(values + t * kHeadDim + d);
      const Vec kd = load_bf16(key + d);
      for (int r = 0; r < 8; ++r) sum[r] = _mm256_fmadd_ps(kd, load(q + r * kHeadDim + d), sum[r]);
    }
    store(scores + 8 * t, sums_of(sum));
  }
  const Vec shrink = softmax_lanes(visible, span, peak, total, scores, kQueryLanes);
  alignas(32) float factor[8];
  store(factor, shrink);
  for (int d = 0; d < kHeadDim; d += 8) {
    Vec acc[8];
    for (int r = 0; r < 8; ++r) acc[r] = _mm256_mul_ps(_mm256_broadcast_ss(factor + r), load(o + r * kHeadDim + d));
    for (int t = 0; t < span; ++t) {
      prefetch(next_keys + (d / 8 * 64 + t) * 8);
      const Vec v = load_bf16(values + t * kHeadDim + d);
      for (int r = 0; r < 8; ++r) acc[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(scores + 8 * t + r), v, acc[r]);
    }
    for (int r = 0; r < 8; ++r) store(o + r * kHeadDim + d, acc[r]);
  }
}

}  // namespace

const KernelTable kAvx2Kernels = {
    .isa = "avx2",
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
