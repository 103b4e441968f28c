// NEON with I8MM: tiles of weights by products of 2 × 8 and 8 × 2 matrices. The rest of the table is NEON's. As in
// every file of one instruction set, nothing but intrinsics, <cstdint> and constexpr headers may be used here.

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/kernels.h"
#include "ops/dims.h"

namespace calla {
namespace {

constexpr int kGroup = 64;

#include "backend/cpu/kernels_neon_vector.inc"

constexpr int kRowPairs = kBlockRows / 2;

// The lower halves of a and b, and the upper ones.
inline uint8x16_t lower(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
inline uint8x16_t upper(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

// A block is [eight codes of the QuantRows order][pair of rows][2][8].
inline void expand_block(const uint8_t* const* rows, int64_t at, uint8_t* codes) {
  for (int p = 0; p < kRowPairs; ++p) {
    for (int half = 0; half < 2; ++half) {
      const uint8x16_t a = vld1q_u8(rows[2 * p] + at + 16 * half), b = vld1q_u8(rows[2 * p + 1] + at + 16 * half);
      const uint8x16_t eights[2] = {lower(a, b), upper(a, b)};
      for (int i = 0; i < 2; ++i) {
        uint8_t* to = codes + ((2 * half + i) * kRowPairs + p) * 16;
        vst1q_u8(to, low_nibbles(eights[i]));
        vst1q_u8(to + 4 * kRowPairs * 16, high_nibbles(eights[i]));
      }
    }
  }
}

// Tokens in pairs, too; a token alone is its own partner.
template <int T>
struct Products {
  int32x4_t sums[(T + 1) / 2][kRowPairs] = {};  // [token][row] of a pair each
  int32x4_t of(int t, int i) const {
    const int64x2_t one = vreinterpretq_s64_s32(sums[t / 2][2 * i]);
    const int64x2_t other = vreinterpretq_s64_s32(sums[t / 2][2 * i + 1]);
    return vreinterpretq_s32_s64(t % 2 == 0 ? vzip1q_s64(one, other) : vzip2q_s64(one, other));
  }
};
template <int T>
inline void add_products(const uint8_t* codes, const int8_t* const* x, Products<T>* products) {
  constexpr int kTokenPairs = (T + 1) / 2;
  auto& square = products->sums;
  // Unrolled, the compiler mixes the steps and spills.
#pragma GCC unroll 1
  for (int c = 0; c < kGroup; c += 16) {
    int8x16_t a[2][kTokenPairs];
    for (int u = 0; u < kTokenPairs; ++u) {
      const uint8x16_t one = vreinterpretq_u8_s8(vld1q_s8(x[2 * u] + c));
      const uint8x16_t other = vreinterpretq_u8_s8(vld1q_s8(x[2 * u + 1 < T ? 2 * u + 1 : 2 * u] + c));
      a[0][u] = vreinterpretq_s8_u8(lower(one, other));
      a[1][u] = vreinterpretq_s8_u8(upper(one, other));
    }
    for (int i = 0; i < 2; ++i) {
      for (int p = 0; p < kRowPairs; ++p, codes += 16) {
        const int8x16_t w = vreinterpretq_s8_u8(vld1q_u8(codes));
        for (int u = 0; u < kTokenPairs; ++u) square[u][p] = vmmlaq_s32(square[u][p], a[i][u], w);
      }
    }
  }
}

#include "backend/cpu/kernels_neon_tile.inc"

}  // namespace

void use_neon_i8mm_kernels(KernelTable* table) noexcept {
  table->isa = "neon-i8mm";
  table->expand_tile = expand_tile;
  table->tile_product = tile_product;
}

}  // namespace calla
