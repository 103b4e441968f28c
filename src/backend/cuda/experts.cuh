#pragma once

// Kernels of experts.h, for files that compile them for different chips.

#include "backend/cuda/chip.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/tile_product.cuh"
#include "backend/cuda/warp_groups.cuh"

namespace calla::cuda {

// A matrix of experts, one after another.
struct ExpertMatrix {
  const uint8_t *codes, *scales;
  size_t next_codes, next_scales;  // bytes from one expert to the next
  int row_tiles, groups;
};
// kInner: x has a row for each token, y for each slot; otherwise both for each slot. Rows of slots lie as Routing has
// them, those of the shared expert with its width.
struct Experts {
  ExpertMatrix routed, shared;
  Routing r;
  int routed_slots;
  const Half* x;
  Half* y;
};

// Two rows' sums of two tokens, as this lane and the one four further have them (rows i, tokens 2t and 2t+1; rows i^1),
// become two rows of one token: even i keep token 2t, odd ones 2t+1.
__device__ __forceinline__ __half2 pair_rows(float first, float second, int lane) {
  const bool odd = lane / 4 & 1;
  const float other = __shfl_xor_sync(0xffffffff, odd ? first : second, 4);
  return odd ? __halves2half2(to_half(other), to_half(second)) : __halves2half2(to_half(first), to_half(other));
}

// Block (b, i): kBlockTiles row tiles for the slots of tile i. kInner: rows of tiles are gate, up in turn.
template <class C, bool kInner>
__global__ __launch_bounds__(C::kLaunchThreads, C::kBlocks) void experts_kernel(const __grid_constant__ Experts p,
                                                                                int turns) {
  extern __shared__ __align__(128) uint8_t shared[];
  static_assert(C::kRowTiles % 2 == 0);
  wait_for_previous();
  launch_next();
  if (static_cast<int>(blockIdx.y) >= *p.r.tile_count) return;
  const ExpertTile tile = p.r.tiles[blockIdx.y];
  const bool is_shared = tile.expert == p.r.experts;
  const ExpertMatrix& w = is_shared ? p.shared : p.routed;
  const int first_tile = blockIdx.x * C::kBlockTiles * turns;
  if (first_tile >= w.row_tiles) return;
  const size_t expert = is_shared ? 0 : tile.expert, tiles = size_t(first_tile) * w.groups;
  constexpr int kUnit = kInner ? 2 : 1;  // row tiles of weights for one of results
  // Where the slots of the tile's kind of expert begin.
  const int start = is_shared ? p.routed_slots : 0, first_slot = tile.first - start;
  const Half* const x = p.x + (kInner ? 0 : size_t(start) * p.routed.groups * kGroup);
  Half* const slots = p.y + size_t(start) * (p.routed.row_tiles / kUnit) * kTileRows;
  const BlockProduct block{w.codes + w.next_codes * expert + tiles * kTileCodeBytes,
                           w.scales + w.next_scales * expert + tiles * kTileScaleWords * 4,
                           w.row_tiles - first_tile,
                           w.groups,
                           tile.count,
                           x,
                           turns};
  const auto row = [&](int token) { return kInner ? p.r.slot_token[tile.first + token] : first_slot + token; };
  multiply<C>(
      block, shared, [] {}, row,
      [&](const float(&sum)[C::kRowTiles][C::kTokenTiles][4], int warp_tile) {
        const int lane = threadIdx.x % kWarp;
        const int first_unit = (first_tile + warp_tile) / kUnit, units = w.row_tiles / kUnit;
#pragma unroll
        for (int n = 0; n < C::kTokenTiles; ++n) {
          if (8 * n >= tile.count) break;
          const int token = n * 8 + lane % 4 * 2 + (lane / 4 & 1);
          Half* const y = slots + size_t(first_slot + token) * units * kTileRows + (lane / 4 & ~1);
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

// turns: as in BlockProduct.
template <class C, bool kInner>
void launch_experts(Stream stream, const Experts& p, int tiles, int turns = 1) {
  static const bool once = (allow_shared(experts_kernel<C, kInner>, current_chip().shared_bytes), true);
  (void)once;
  const int rows = C::kBlockTiles * turns, row_tiles = std::max(p.routed.row_tiles, p.shared.row_tiles);
  launch(experts_kernel<C, kInner>, dim3((row_tiles + rows - 1) / rows, tiles), C::kLaunchThreads,
         shared_bytes<C>(std::max(p.routed.groups, p.shared.groups)), stream, p, turns);
}

// Row tiles, token tiles, row warps, split, stages.
using ExpertGroups = GroupCut<2, 16, 8, 1, 6>;  // 256 rows × 128 slots
// experts_sm90.cu. Tiles of up to ExpertGroups::kTokens slots, at most `tiles` of them.
void launch_inner_groups(Stream stream, const Experts& p, int tiles);
void launch_outer_groups(Stream stream, const Experts& p, int tiles);

}  // namespace calla::cuda
