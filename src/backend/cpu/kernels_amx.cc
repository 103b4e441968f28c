// AMX-int8: the product of a tile of weights with 16 tokens at a time, in tile registers. The rest of the table is
// AVX-512's, the layout of the tile included: what VPDPBUSD wants of its weights is what TDPBSUD wants of its second
// operand. As in every file of one instruction set, nothing but intrinsics, <cstdint> and constexpr headers may be
// used.

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/kernels.h"
#include "ops/dims.h"

namespace calla {
namespace {

constexpr int kGroup = 64;
constexpr int kTokens = 16;  // rows of a tile register

// What LDTILECFG reads: palette 1, every register 16 rows of 64 bytes. A thread sets it once and keeps it.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void configure_thread() {
  static thread_local bool configured = false;
  if (configured) return;
  const TileConfig config;
  _tile_loadconfig(&config);
  configured = true;
}

inline __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}

#include "backend/cpu/kernels_ahead.inc"

// Codes of 16 tokens from a group on, a row each: where they lie if they are evenly spaced, else copied. Rows past
// `count` repeat the last one and are computed for nothing.
struct Tokens {
  alignas(64) int8_t copy[kTokens][kTileBlocks / 2 * kGroup];
  const int8_t* first;
  int64_t stride;

  // `codes`: a plane of x.
  Tokens(const QuantRows& x, const int8_t* codes, int first_group, int groups, const int32_t* index, int count) {
    codes += int64_t{first_group} * kGroup;
    first = codes + index[0] * x.code_stride;
    stride = x.code_stride;
    bool neighbours = count == kTokens;
    for (int t = 1; t < count; ++t) neighbours = neighbours && index[t] == index[0] + t;
    if (neighbours) return;
    for (int t = 0; t < kTokens; ++t) {
      const int8_t* from = codes + index[t < count ? t : count - 1] * x.code_stride;
      for (int g = 0; g < groups; ++g) {
        _mm512_store_si512(copy[t] + g * kGroup, _mm512_loadu_si512(from + g * kGroup));
      }
    }
    first = copy[0];
    stride = sizeof copy[0];
  }
};

// Sums of one group: [plane][half of the rows][token][row].
struct alignas(64) Sums {
  int32_t of[2][2][kTokens][kBlockRows];
};

template <bool kRest>
inline void multiply(const WeightTile& tile, int g, const Tokens* planes, Sums* sums) {
  _tile_loadd(0, planes[0].first + g * kGroup, planes[0].stride);
  _tile_loadd(1, tile.codes[2 * g], 64);
  _tile_loadd(2, tile.codes[2 * g + 1], 64);
  _tile_zero(4);
  _tile_zero(5);
  _tile_dpbsud(4, 0, 1);
  _tile_dpbsud(5, 0, 2);
  if (kRest) {
    _tile_loadd(3, planes[1].first + g * kGroup, planes[1].stride);
    _tile_zero(6);
    _tile_zero(7);
    _tile_dpbsud(6, 3, 1);
    _tile_dpbsud(7, 3, 2);
  }
  _tile_stored(4, sums->of[0][0], 64);
  _tile_stored(5, sums->of[0][1], 64);
  if (kRest) {
    _tile_stored(6, sums->of[1][0], 64);
    _tile_stored(7, sums->of[1][1], 64);
  }
}

// y += scale · step · sums + bias · sum, as AVX-512's tile does it, to the bit.
template <bool kRest>
inline void add_group(const WeightTile& tile, int g, const Sums& sums, const QuantRows& x, int group,
                      const int32_t* index, int count, const __mmask16* lanes, float* y, int64_t y_stride) {
  __m512 scale[2], bias[2];
  for (int i = 0; i < 2; ++i) {
    scale[i] = _mm512_load_ps(tile.scales[2 * g + i]);
    bias[i] = _mm512_load_ps(tile.biases[2 * g + i]);
  }
  for (int t = 0; t < count; ++t) {
    const int64_t at = index[t] * x.group_stride + group;
    const __m512 step = _mm512_set1_ps(x.scales[at]), sum = _mm512_set1_ps(x.sums[at]);
    for (int i = 0; i < 2; ++i) {
      float* to = y + t * y_stride + i * kBlockRows;
      __m512i steps = _mm512_load_si512(sums.of[0][i][t]);
      if (kRest) {
        steps = _mm512_add_epi32(_mm512_slli_epi32(steps, kRestBits), _mm512_load_si512(sums.of[1][i][t]));
      }
      const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(steps), step);
      const __m512 out = _mm512_fmadd_ps(product, scale[i], _mm512_maskz_loadu_ps(lanes[i], to));
      _mm512_mask_storeu_ps(to, lanes[i], _mm512_fmadd_ps(bias[i], sum, out));
    }
  }
}

template <bool kRest>
inline void tile_blocks(const WeightTile& tile, int rows, int groups, const QuantRows& x, int first_group,
                        const int32_t* index, int count, bool first, float* y, int64_t y_stride) {
  const __mmask16 lanes[2] = {first_lanes(rows), first_lanes(rows - kBlockRows)};
  Ahead ahead(tile.next, (count + kTokens - 1) / kTokens * groups);
  for (int begin = 0; begin < count; begin += kTokens, index += kTokens, y += kTokens * y_stride) {
    const int some = count - begin < kTokens ? count - begin : kTokens;
    const Tokens planes[] = {{x, x.codes, first_group, groups, index, some},
                             {x, kRest ? x.rest : x.codes, first_group, kRest ? groups : 0, index, some}};
    if (first) {
      for (int t = 0; t < some; ++t) {
        for (int i = 0; i < 2; ++i) {
          _mm512_mask_storeu_ps(y + t * y_stride + i * kBlockRows, lanes[i], _mm512_setzero_ps());
        }
      }
    }
    // The compiler does not know what tile loads read.
    asm volatile("" ::: "memory");
    // A group is multiplied in tile registers while the one before is scaled in vectors.
    Sums sums[2];
    multiply<kRest>(tile, 0, planes, &sums[0]);
    for (int g = 0; g < groups; ++g) {
      if (g + 1 < groups) multiply<kRest>(tile, g + 1, planes, &sums[(g + 1) % 2]);
      ahead.step();
      add_group<kRest>(tile, g, sums[g % 2], x, first_group + g, index, some, lanes, y, y_stride);
    }
  }
}

void tile_product(const WeightTile& tile, int rows, int groups, const QuantRows& x, int first_group,
                  const int32_t* index, int count, bool first, float* y, int64_t y_stride) noexcept {
  configure_thread();
  const auto blocks = x.rest == nullptr ? tile_blocks<false> : tile_blocks<true>;
  blocks(tile, rows, groups, x, first_group, index, count, first, y, y_stride);
}

}  // namespace

void use_amx_kernels(KernelTable* table) noexcept {
  table->isa = "amx";
  table->tile_product = tile_product;
}

}  // namespace calla
