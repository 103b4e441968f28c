#include "backend/cuda/products.h"

#include <algorithm>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/tile_product.cuh"

namespace calla::cuda {
namespace {

int multiprocessors() {
  static const int count = [] {
    int device = 0, n = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return n;
  }();
  return count;
}

struct Matrix {
  const uint8_t* weight;
  const uint8_t* scales;
  float* y;
  int rows, row_tiles, y_stride;
  int first_block;  // of the launch, that has rows of this matrix
  bool add;
};
struct Products {
  Matrix w[kMaxProducts];
  int count, groups, m;
  const void* x;
};

int row_tiles_of(int rows) {
  return (rows + kTileRows - 1) / kTileRows;
}

Products describe(std::span<const ProductOut> outs, DeviceLinear::Format format, const void* x, int m) {
  Products p{};
  CHECK(!outs.empty() && outs.size() <= kMaxProducts && m >= 1, "a product that there is no kernel for");
  p.groups = outs[0].w.in / kGroup;
  p.m = m;
  p.x = x;
  for (const ProductOut& out : outs) {
    CHECK(out.w.format == format && out.w.in == p.groups * kGroup, "a product that there is no kernel for");
    p.w[p.count++] = {static_cast<const uint8_t*>(out.w.weight),
                      reinterpret_cast<const uint8_t*>(out.w.scales),
                      out.y,
                      out.w.out,
                      row_tiles_of(out.w.out),
                      out.y_stride,
                      0,
                      out.add};
  }
  return p;
}

// Gives every matrix its blocks of `tiles` row tiles; how many there are.
int share_out(Products& p, int tiles) {
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

__device__ __forceinline__ void put(const Matrix& w, int token, int row, float value) {
  float* const y = w.y + size_t(token) * w.y_stride + row;
  *y = w.add ? *y + value : value;
}

// Block (b, i): kBlockTiles row tiles of one matrix × tokens from kTokens·i on.
template <class C>
__global__ __launch_bounds__(C::kThreads, C::kBlocks) void products_kernel(const __grid_constant__ Products p) {
  extern __shared__ __align__(128) uint8_t shared[];
  const Matrix& w = p.w[matrix_of(p, blockIdx.x)];
  const int first_tile = (blockIdx.x - w.first_block) * C::kBlockTiles, first_token = blockIdx.y * C::kTokens;
  const size_t tiles = size_t(first_tile) * p.groups;
  const BlockProduct block{w.weight + tiles * kTileCodeBytes,  w.scales + tiles * kTileScaleWords * 4,
                           w.row_tiles - first_tile,           p.groups,
                           min(p.m - first_token, C::kTokens), static_cast<const Half*>(p.x)};
  const auto ready = [] {
    wait_for_previous();
    launch_next();
  };
  float sum[C::kRowTiles][C::kTokenTiles][4];
  multiply<C>(
      block, shared, ready, [&](int token) { return first_token + token; }, sum);

  const auto store = [&](int tile, int token_tile, int lane, int j, float value) {
    const int row = (first_tile + tile) * kTileRows + lane / 4 + j / 2 * 8;
    const int token = token_tile * 8 + lane % 4 * 2 + j % 2;
    if (row < w.rows && token < block.tokens) put(w, first_token + token, row, value);
  };
  if constexpr (C::kSplit > 1) {
    reduce<C>(sum, shared, store);
  } else {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int n = 0; n < C::kTokenTiles; ++n) {
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
        for (int j = 0; j < 4; ++j) store(warp * C::kRowTiles + r, n, lane, j, sum[r][n][j]);
      }
    }
  }
}

template <class C>
void launch_products(Stream stream, Products p) {
  static const bool once = (allow_shared(products_kernel<C>, C::kSharedBytes), true);
  (void)once;
  const int blocks = share_out(p, C::kBlockTiles);
  launch(products_kernel<C>, dim3(blocks, (p.m + C::kTokens - 1) / C::kTokens), C::kThreads, C::kSharedBytes, stream,
         p);
}

// Exact products. Eight warps have the same outputs and every eighth group each. The columns of a group go to the lanes
// as in tiles.h. x is the sum of two f16, the second scaled so that it keeps its bits where x is small.
constexpr int kExactWarps = 8;
constexpr int kExactTokenTiles = 2;
constexpr float kLowScale = 2048;

// Two neighbouring bytes as f16: a code under the exponent of 1024 is 1024 + code.
template <uint32_t kSelector>
__device__ __forceinline__ uint32_t two_codes(uint32_t word) {
  return bits(__hsub2(as_half2(__byte_perm(word, 0x64646464, kSelector)), as_half2(0x64006400)));
}
__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

template <int kRowTiles>
__global__ __launch_bounds__(kExactWarps* kWarp, 2) void exact_kernel(const __grid_constant__ Products p) {
  constexpr int kSums = kRowTiles * kExactTokenTiles * 4;
  __shared__ float sums[kExactWarps][kSums][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, t = lane % 4;
  const Matrix& w = p.w[matrix_of(p, blockIdx.x)];
  const int in = p.groups * kGroup;
  const int first_tile = (blockIdx.x - w.first_block) * kRowTiles, first_token = blockIdx.y * 8 * kExactTokenTiles;
  const float* const x = static_cast<const float*>(p.x);
  float sum[kRowTiles][kExactTokenTiles][4] = {};
  wait_for_previous();
  launch_next();
  for (int g = warp; g < p.groups; g += kExactWarps) {
    uint32_t high[kExactTokenTiles][4][2], low[kExactTokenTiles][4][2];
    float total[kExactTokenTiles][2];  // of tokens 2t, 2t+1
#pragma unroll
    for (int n = 0; n < kExactTokenTiles; ++n) {
      const int token = min(first_token + 8 * n + i, p.m - 1);
      const float4* const from = reinterpret_cast<const float4*>(x + size_t(token) * in + g * kGroup) + 4 * t;
      float mine = 0;
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const float4 v = from[s];
        mine += (v.x + v.y) + (v.z + v.w);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 two = h == 0 ? float2{v.x, v.y} : float2{v.z, v.w};
          const __half2 rounded = __halves2half2(to_half(two.x), to_half(two.y));
          const float2 back = __half22float2(rounded);
          high[n][s][h] = bits(rounded);
          low[n][s][h] =
              bits(__halves2half2(to_half((two.x - back.x) * kLowScale), to_half((two.y - back.y) * kLowScale)));
        }
      }
      mine += __shfl_xor_sync(0xffffffff, mine, 1);
      mine += __shfl_xor_sync(0xffffffff, mine, 2);
      total[n][0] = __shfl_sync(0xffffffff, mine, 8 * t);
      total[n][1] = __shfl_sync(0xffffffff, mine, 8 * t + 4);
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      if (first_tile + r >= w.row_tiles) break;
      const int row = (first_tile + r) * kTileRows + i;
      uint4 code[2];
      float scale[2], bias[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int mine = min(row + 8 * h, w.rows - 1);
        code[h] = *reinterpret_cast<const uint4*>(w.weight + size_t(mine) * in + g * kGroup + 16 * t);
        const uint32_t word = reinterpret_cast<const uint32_t*>(w.scales)[size_t(mine) * p.groups + g];
        scale[h] = scale_of(word);
        bias[h] = bias_of(word);
      }
      float d[kExactTokenTiles][4] = {}, rest[kExactTokenTiles][4] = {};
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const uint32_t first = word_of(code[0], s), second = word_of(code[1], s);
        const uint32_t a[4] = {two_codes<0x4140>(first), two_codes<0x4140>(second), two_codes<0x4342>(first),
                               two_codes<0x4342>(second)};
#pragma unroll
        for (int n = 0; n < kExactTokenTiles; ++n) {
          mma(d[n], a, high[n][s][0], high[n][s][1]);
          mma(rest[n], a, low[n][s][0], low[n][s][1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kExactTokenTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[r][n][j] += scale[j / 2] * (d[n][j] + rest[n][j] * (1 / kLowScale)) + bias[j / 2] * total[n][j % 2];
        }
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kSums; ++v) {
    sums[warp][v][lane] = sum[v / (kExactTokenTiles * 4)][v / 4 % kExactTokenTiles][v % 4];
  }
  __syncthreads();
  for (int at = threadIdx.x; at < kSums * kWarp; at += kExactWarps * kWarp) {
    const int v = at / kWarp, l = at % kWarp;
    float total = 0;
#pragma unroll
    for (int s = 0; s < kExactWarps; ++s) total += sums[s][v][l];
    const int row = (first_tile + v / (kExactTokenTiles * 4)) * kTileRows + l / 4 + v % 4 / 2 * 8;
    const int token = first_token + v / 4 % kExactTokenTiles * 8 + l % 4 * 2 + v % 2;
    if (row < w.rows && token < p.m) put(w, token, row, total);
  }
}

template <int kRowTiles>
void launch_exact(Stream stream, Products p) {
  const int blocks = share_out(p, kRowTiles);
  constexpr int kTokens = 8 * kExactTokenTiles;
  launch(exact_kernel<kRowTiles>, dim3(blocks, (p.m + kTokens - 1) / kTokens), kExactWarps * kWarp, 0, stream, p);
}

//                  row tiles, token tiles, row warps, split, stages, blocks
using Few = Cut<1, 2, 1, 8, 3, 3>;     // 16 rows × 16 tokens
using Narrow = Cut<2, 2, 2, 4, 4, 3>;  // 64 × 16
using Middle = Cut<2, 4, 4, 2, 4, 2>;  // 128 × 32
using Wide = Cut<4, 8, 4, 1, 4, 2>;    // 256 × 64

}  // namespace

void products(Stream stream, std::span<const ProductOut> outs, const Half* x, int m) {
  Products p = describe(outs, DeviceLinear::Format::kAffine4, x, m);
  // The largest blocks that still fill the chip.
  const auto blocks = [&]<class C>(C) { return share_out(p, C::kBlockTiles) * ((m + C::kTokens - 1) / C::kTokens); };
  const int chip = multiprocessors();
  if (m > 32 && blocks(Wide{}) >= chip) {
    launch_products<Wide>(stream, p);
  } else if (m > 16) {
    launch_products<Middle>(stream, p);
  } else if (blocks(Narrow{}) >= chip) {
    launch_products<Narrow>(stream, p);
  } else {
    launch_products<Few>(stream, p);
  }
}

void exact_products(Stream stream, std::span<const ProductOut> outs, const float* x, int m) {
  const Products p = describe(outs, DeviceLinear::Format::kAffine8, x, m);
  if (m > 256) {
    launch_exact<4>(stream, p);
  } else {
    launch_exact<1>(stream, p);
  }
}

}  // namespace calla::cuda
