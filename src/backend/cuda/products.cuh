#pragma once

// Kernels of products.h, for files that compile them for different chips.

#include "backend/cuda/chip.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/products.h"
#include "backend/cuda/tile_product.cuh"
#include "backend/cuda/warp_groups.cuh"

namespace calla::cuda {

struct ProductMatrix {
  const uint8_t* weight;
  const uint8_t* scales;
  float* y;
  int rows, row_tiles, y_stride;
  int first_block;  // of the launch, that has rows of this matrix
  bool add;
};
struct Products {
  ProductMatrix w[kMaxProducts];
  int count, groups, m;
  const void* x;
};

// Gives every matrix its blocks of `tiles` row tiles; how many there are.
inline int share_out(Products& p, int tiles) {
  int blocks = 0;
  for (int j = 0; j < p.count; ++j) {
    p.w[j].first_block = blocks;
    blocks += (p.w[j].row_tiles + tiles - 1) / tiles;
  }
  return blocks;
}

__device__ __forceinline__ int matrix_of(const Products& p, int block) {
  int matrix = 0;
#pragma unroll
  for (int j = 1; j < kMaxProducts; ++j) {
    if (j < p.count && block >= p.w[j].first_block) matrix = j;
  }
  return matrix;
}

__device__ __forceinline__ void put(const ProductMatrix& w, int token, int row, float value) {
  float* const y = w.y + size_t(token) * w.y_stride + row;
  *y = w.add ? *y + value : value;
}

// Block (b, i): kBlockTiles row tiles of one matrix × tokens from kTokens·i on.
template <class C>
__global__ __launch_bounds__(C::kLaunchThreads, C::kBlocks) void products_kernel(const __grid_constant__ Products p) {
  extern __shared__ __align__(128) uint8_t shared[];
  const ProductMatrix& w = p.w[matrix_of(p, blockIdx.x)];
  const int first_tile = (blockIdx.x - w.first_block) * C::kBlockTiles, first_token = blockIdx.y * C::kTokens;
  const size_t tiles = size_t(first_tile) * p.groups;
  const BlockProduct block{w.weight + tiles * kTileCodeBytes,  w.scales + tiles * kTileScaleWords * 4,
                           w.row_tiles - first_tile,           p.groups,
                           min(p.m - first_token, C::kTokens), static_cast<const Half*>(p.x)};
  const auto ready = [] {
    wait_for_previous();
    launch_next();
  };
  const auto row = [&](int token) { return first_token + token; };
  multiply<C>(block, shared, ready, row, [&](const float(&sum)[C::kRowTiles][C::kTokenTiles][4], int tile) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < C::kTokenTiles; ++n) {
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int o = (first_tile + tile + r) * kTileRows + lane / 4 + j / 2 * 8;
          const int token = n * 8 + lane % 4 * 2 + j % 2;
          if (o < w.rows && token < block.tokens) put(w, first_token + token, o, sum[r][n][j]);
        }
      }
    }
  });
}

template <class C>
void launch_products(Stream stream, Products p) {
  static const bool once = (allow_shared(products_kernel<C>, current_chip().shared_bytes), true);
  (void)once;
  const int blocks = share_out(p, C::kBlockTiles);
  launch(products_kernel<C>, dim3(blocks, (p.m + C::kTokens - 1) / C::kTokens), C::kLaunchThreads,
         shared_bytes<C>(p.groups), stream, p);
}

// Row tiles, token tiles, row warps, split, stages.
using Groups1 = GroupCut<2, 16, 8, 1, 6>;  // 256 rows × 128 tokens
using Groups2 = GroupCut<2, 8, 4, 2, 6>;   // 128 × 64
using Groups4 = GroupCut<1, 8, 4, 4, 4>;   // 64 × 64
// products_sm90.cu, for each of them.
template <class C>
void launch_groups(Stream stream, const Products& p);

}  // namespace calla::cuda
