#pragma once

// Kernels of experts.h, for files that compile them for different chips.

#include "backend/cuda/chip.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/tile_product.cuh"
#include "backend/cuda/warp_groups.cuh"

namespace calla::cuda {

// A matrix of the routed experts and the same one of the shared.
struct ExpertMatrix {
  const uint8_t *codes, *scales;
  size_t next_codes, next_scales;  // bytes from one expert to the next
  const uint8_t *shared_codes, *shared_scales;
};
struct Experts {
  ExpertMatrix w;
  int row_tiles, groups;
  Routing r;
  const Half* x;
  Half* y;
};

__device__ __forceinline__ BlockProduct expert_product(const Experts& p, const ExpertTile& tile, int first_tile) {
  const bool routed = tile.expert < p.r.experts;
  const uint8_t* const codes = routed ? p.w.codes + p.w.next_codes * tile.expert : p.w.shared_codes;
  const uint8_t* const scales = routed ? p.w.scales + p.w.next_scales * tile.expert : p.w.shared_scales;
  const size_t tiles = size_t(first_tile) * p.groups;
  return {codes + tiles * kTileCodeBytes,
          scales + tiles * kTileScaleWords * 4,
          p.row_tiles - first_tile,
          p.groups,
          tile.count,
          p.x};
}

// Two rows' sums of two tokens, as this lane and the one four further have them (rows i, tokens 2t and 2t+1; rows i^1),
// become two rows of one token: even i keep token 2t, odd ones 2t+1.
__device__ __forceinline__ __half2 pair_rows(float first, float second, int lane) {
  const bool odd = lane / 4 & 1;
  const float other = __shfl_xor_sync(0xffffffff, odd ? first : second, 4);
  return odd ? __halves2half2(to_half(other), to_half(second)) : __halves2half2(to_half(first), to_half(other));
}

// Block (b, i): kBlockTiles row tiles for the slots of tile i. kInner: rows of tiles are gate, up in turn.
template <class C, bool kInner>
__global__ __launch_bounds__(C::kLaunchThreads, C::kBlocks) void experts_kernel(const __grid_constant__ Experts p) {
  extern __shared__ __align__(128) uint8_t shared[];
  static_assert(C::kRowTiles % 2 == 0);
  const int first_tile = blockIdx.x * C::kBlockTiles;
  wait_for_previous();
  launch_next();
  if (static_cast<int>(blockIdx.y) >= *p.r.tile_count) return;
  const ExpertTile tile = p.r.tiles[blockIdx.y];
  const BlockProduct block = expert_product(p, tile, first_tile);
  const auto row = [&](int token) { return kInner ? p.r.slot_token[tile.first + token] : tile.first + token; };
  multiply<C>(
      block, shared, [] {}, row,
      [&](const float(&sum)[C::kRowTiles][C::kTokenTiles][4]) {
        const int lane = threadIdx.x % kWarp, row_warp = threadIdx.x / kWarp % C::kRowWarps;
        constexpr int kUnit = kInner ? 2 : 1;  // row tiles of weights for one of results
        const int first_unit = (first_tile + row_warp * C::kRowTiles) / kUnit, units = p.row_tiles / kUnit;
#pragma unroll
        for (int n = 0; n < C::kTokenTiles; ++n) {
          if (8 * n >= tile.count) break;
          const int token = n * 8 + lane % 4 * 2 + (lane / 4 & 1);
          Half* const y = p.y + size_t(tile.first + token) * units * kTileRows + (lane / 4 & ~1);
#pragma unroll
          for (int u = 0; u < C::kRowTiles / kUnit; ++u) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              float v[2];
#pragma unroll
              for (int j = 0; j < 2; ++j) {
                if constexpr (kInner) {
                  v[j] = silu(sum[2 * u][n][2 * h + j]) * sum[2 * u + 1][n][2 * h + j];
                } else {
                  v[j] = sum[u][n][2 * h + j];
                }
              }
              const __half2 two = pair_rows(v[0], v[1], lane);
              if (token < tile.count && first_unit + u < units) {
                *reinterpret_cast<__half2*>(y + (first_unit + u) * kTileRows + 8 * h) = two;
              }
            }
          }
        }
      });
}

template <class C, bool kInner>
void launch_experts(Stream stream, const Experts& p, int tiles) {
  static const bool once = (allow_shared(experts_kernel<C, kInner>, current_chip().shared_bytes), true);
  (void)once;
  launch(experts_kernel<C, kInner>, dim3((p.row_tiles + C::kBlockTiles - 1) / C::kBlockTiles, tiles), C::kLaunchThreads,
         shared_bytes<C>(p.groups), stream, p);
}

// Row tiles, token tiles, row warps, split, stages.
using ExpertGroups = GroupCut<2, 16, 8, 1, 6>;  // 256 rows × 128 slots
// experts_sm90.cu. Tiles of up to ExpertGroups::kTokens slots, at most `tiles` of them.
void launch_inner_groups(Stream stream, const Experts& p, int tiles);
void launch_outer_groups(Stream stream, const Experts& p, int tiles);

}  // namespace calla::cuda
