#include "backend/cuda/products.h"

#include <algorithm>

#include "backend/cuda/chip.h"
#include "backend/cuda/products.cuh"

namespace calla::cuda {
namespace {

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

// Exact products. The columns of a group go to the lanes as in tiles.h. x is the sum of two f16, the second scaled so
// that it keeps its bits where x is small.
constexpr int kExactWarps = 8;
constexpr float kLowScale = 2048;

struct TwoHalves {
  uint32_t high, low;
};
__device__ __forceinline__ TwoHalves split(float a, float b) {
  const __half2 high = __halves2half2(to_half(a), to_half(b));
  const float2 back = __half22float2(high);
  return {bits(high), bits(__halves2half2(to_half((a - back.x) * kLowScale), to_half((b - back.y) * kLowScale)))};
}

// Rows i and i+8 of a row tile: where this lane's columns of group 0 are.
struct ExactRows {
  const uint8_t* codes;
  const uint32_t* scales;
  uint32_t offset[2];
  __device__ __forceinline__ ExactRows(const ProductMatrix& w, int tile, int groups, int lane)
      : codes(w.weight), scales(reinterpret_cast<const uint32_t*>(w.scales)) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      offset[h] = min(tile * kTileRows + lane / 4 + 8 * h, w.rows - 1) * (groups * kGroup) + lane % 4 * 16;
    }
  }
  __device__ __forceinline__ uint32_t scale(int h, int group) const {
    return scales[offset[h] / kGroup + group];
  }
};
// Their share of one group.
struct ExactCodes {
  uint4 code[2];
  uint32_t scale[2];
  __device__ __forceinline__ void load(const ExactRows& rows, int group) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      code[h] = *reinterpret_cast<const uint4*>(rows.codes + rows.offset[h] + group * kGroup);
      scale[h] = rows.scale(h, group);
    }
  }
};

// Two neighbouring bytes as f16: a code under the exponent of 1024 is 1024 + code.
template <uint32_t kSelector>
__device__ __forceinline__ uint32_t two_codes(uint32_t word) {
  return bits(__hsub2(as_half2(__byte_perm(word, 0x64646464, kSelector)), as_half2(0x64006400)));
}
__device__ __forceinline__ void expand_bytes(const uint4 (&code)[2], uint32_t (&a)[4][4]) {
  const uint32_t words[2][4] = {{code[0].x, code[0].y, code[0].z, code[0].w},
                                {code[1].x, code[1].y, code[1].z, code[1].w}};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      a[s][h] = two_codes<0x4140>(words[h][s]);
      a[s][2 + h] = two_codes<0x4342>(words[h][s]);
    }
  }
}
// sum += (scale·codes + bias)·x of a group. high, low: of x, by step and register; total: the sums of x of tokens 2t
// and 2t+1.
using ExactColumns = uint32_t[4][2];
__device__ __forceinline__ void add_exact(float (&sum)[4], const uint32_t (&a)[4][4], const uint32_t (&scale)[2],
                                          const ExactColumns& high, const ExactColumns& low, const float (&total)[2]) {
  float d[4] = {}, rest[4] = {};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    mma(d, a[s], high[s][0], high[s][1]);
    mma(rest, a[s], low[s][0], low[s][1]);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    sum[j] += scale_of(scale[j / 2]) * (d[j] + rest[j] * (1 / kLowScale)) + bias_of(scale[j / 2]) * total[j % 2];
  }
}

// Few tokens: a block has one row tile × 16 tokens, a warp every eighth group.
constexpr int kExactTokenTiles = 2;
__global__ __launch_bounds__(kExactWarps* kWarp) void exact_kernel(const __grid_constant__ Products p) {
  constexpr int kSums = kExactTokenTiles * 4;
  __shared__ float sums[kExactWarps][kSums][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, t = lane % 4;
  const ProductMatrix& w = p.w[matrix_of(p, blockIdx.x)];
  const int tile = blockIdx.x - w.first_block, first_token = blockIdx.y * 8 * kExactTokenTiles;
  const ExactRows rows(w, tile, p.groups, lane);
  float sum[kExactTokenTiles][4] = {};
  wait_for_previous();
  launch_next();
  for (int g = warp; g < p.groups; g += kExactWarps) {
    ExactCodes codes;
    codes.load(rows, g);
    uint32_t a[4][4];
    expand_bytes(codes.code, a);
#pragma unroll
    for (int n = 0; n < kExactTokenTiles; ++n) {
      const int token = min(first_token + 8 * n + i, p.m - 1);
      const float4* const from =
          static_cast<const float4*>(p.x) + (size_t(token) * p.groups + g) * (kGroup / 4) + 4 * t;
      ExactColumns high, low;
      float mine = 0;
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const float4 v = from[s];
        mine += (v.x + v.y) + (v.z + v.w);
        const TwoHalves one = split(v.x, v.y), two = split(v.z, v.w);
        high[s][0] = one.high;
        high[s][1] = two.high;
        low[s][0] = one.low;
        low[s][1] = two.low;
      }
      mine += __shfl_xor_sync(0xffffffff, mine, 1);
      mine += __shfl_xor_sync(0xffffffff, mine, 2);
      const float total[2] = {__shfl_sync(0xffffffff, mine, 8 * t), __shfl_sync(0xffffffff, mine, 8 * t + 4)};
      add_exact(sum[n], a, codes.scale, high, low, total);
    }
  }
#pragma unroll
  for (int v = 0; v < kSums; ++v) sums[warp][v][lane] = sum[v / 4][v % 4];
  __syncthreads();
  const int v = warp;  // kSums warps
  static_assert(kSums == kExactWarps);
  float total = 0;
#pragma unroll
  for (int s = 0; s < kExactWarps; ++s) total += sums[s][v][lane];
  const int row = tile * kTileRows + i + v % 4 / 2 * 8, token = first_token + v / 4 * 8 + t * 2 + v % 2;
  if (row < w.rows && token < p.m) put(w, token, row, total);
}

// Many tokens: a block has 32 tokens, split once for all, and 17 row tiles of whatever matrices, one a warp: a router
// of 256 experts and a shared gate.
constexpr int kWideTokens = 32;
constexpr int kWideFrom = 1440;  // tokens
constexpr int kWideWarps = 17;
constexpr int kWideStages = 3;
__global__ __launch_bounds__(kWideWarps* kWarp) void exact_wide_kernel(const __grid_constant__ Products p) {
  constexpr int kTokenTiles = kWideTokens / 8, kRowBytes = kGroup * 2, kPlane = kWideTokens * kRowBytes;
  __shared__ __align__(128) uint8_t planes[2][2][kPlane];  // [turn][high, low][token][64], copies of 16 bytes exchanged
  __shared__ __align__(8) float totals[2][kWideTokens];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, t = lane % 4;
  const int first_token = blockIdx.y * kWideTokens;
  const int index = blockIdx.x * kWideWarps + warp;
  const ProductMatrix& w = p.w[matrix_of(p, index)];
  const int tile = min(index - w.first_block, w.row_tiles - 1);  // past the last: the last again, not stored
  const bool live = index - w.first_block < w.row_tiles;
  const ExactRows rows(w, tile, p.groups, lane);
  wait_for_previous();
  launch_next();

  // A thread has four columns of a token, but for those of the last warp.
  const int column = threadIdx.x % 16, own = threadIdx.x / 16;
  const bool splits = own < kWideTokens;
  const float4* const from =
      static_cast<const float4*>(p.x) + size_t(min(first_token + own, p.m - 1)) * p.groups * (kGroup / 4) + column;
  // Every thread has its own places in the ring, so it waits only for itself.
  extern __shared__ __align__(16) uint4 ring[];  // [stage][x, row i, row i+8][thread]
  const auto place = [&](int g, int part) { return ring + (g % kWideStages * 3 + part) * blockDim.x + threadIdx.x; };
  const auto copy = [&](int g) {
    if (g < p.groups) {
      copy_async(shared_address(place(g, 0)), from + g * (kGroup / 4));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        copy_async(shared_address(place(g, 1 + h)), rows.codes + rows.offset[h] + g * kGroup);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int g = 0; g < kWideStages - 1; ++g) copy(g);
  float sum[kTokenTiles][4] = {};
  for (int g = 0; g < p.groups; ++g) {
    uint8_t(&turn)[2][kPlane] = planes[g % 2];
    wait_copies<kWideStages - 2>();
    if (splits) {
      const float4 x = *reinterpret_cast<const float4*>(place(g, 0));
      const TwoHalves one = split(x.x, x.y), two = split(x.z, x.w);
      const int to = own * kRowBytes + (column / 2 ^ own % 8) * 16 + column % 2 * 8;
      *reinterpret_cast<uint2*>(turn[0] + to) = make_uint2(one.high, two.high);
      *reinterpret_cast<uint2*>(turn[1] + to) = make_uint2(one.low, two.low);
      float total = (x.x + x.y) + (x.z + x.w);
#pragma unroll
      for (int offset = 8; offset > 0; offset /= 2) total += __shfl_xor_sync(0xffffffff, total, offset);
      if (column == 0) totals[g % 2][own] = total;
    }
    const uint4 code[2] = {*place(g, 1), *place(g, 2)};
    const uint32_t scale[2] = {rows.scale(0, g), rows.scale(1, g)};  // needed only after the products
    copy(g + kWideStages - 1);
    __syncthreads();
    uint32_t a[4][4];
    expand_bytes(code, a);
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const auto columns = [&](const uint8_t* plane, ExactColumns& b) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 v = *reinterpret_cast<const uint4*>(plane + (8 * n + i) * kRowBytes + ((2 * t + half) ^ i) * 16);
          b[2 * half][0] = v.x;
          b[2 * half][1] = v.y;
          b[2 * half + 1][0] = v.z;
          b[2 * half + 1][1] = v.w;
        }
      };
      ExactColumns high, low;
      columns(turn[0], high);
      columns(turn[1], low);
      const float2 two = *reinterpret_cast<const float2*>(&totals[g % 2][8 * n + 2 * t]);
      const float total[2] = {two.x, two.y};
      add_exact(sum[n], a, scale, high, low, total);
    }
  }
  if (!live) return;
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = tile * kTileRows + i + j / 2 * 8, token = first_token + 8 * n + 2 * t + j % 2;
      if (row < w.rows && token < p.m) put(w, token, row, sum[n][j]);
    }
  }
}

// Row tiles, token tiles, row warps, split, stages, blocks.
using Few = FewCut<1, 2, 1, 8, 6, 2>;       // 16 rows × 16 tokens
using SmallFew = FewCut<1, 1, 1, 8, 6, 1>;  // 16 × 8, for chips with less shared memory
using Narrow = FewCut<2, 2, 2, 4, 4, 2>;    // 64 × 16
using Wide = Cut<4, 8, 4, 1, 4, 2>;         // 256 × 64

}  // namespace

void products(Stream stream, std::span<const ProductOut> outs, const Half* x, int m) {
  Products p = describe(outs, DeviceLinear::Format::kAffine4, x, m);
  const auto blocks = [&]<class C>(C) { return share_out(p, C::kBlockTiles) * ((m + C::kTokens - 1) / C::kTokens); };
  const int all = current_chip().multiprocessors;
  // What a multiprocessor has to do: steps of the ring, by what one takes in 1/20 µs on an H200.
  const auto time = [&]<class C>(C cut, int step) {
    return (blocks(cut) + all - 1) / all * ((p.groups + C::kSplit - 1) / C::kSplit) * step;
  };
  if (m > 32 && current_chip().has_wgmma) {
    const int one = time(Groups1{}, 23), two = time(Groups2{}, 22), four = time(Groups4{}, 30);
    if (one <= std::min(two, four)) {
      launch_groups<Groups1>(stream, p);
    } else if (two <= four) {
      launch_groups<Groups2>(stream, p);
    } else {
      launch_groups<Groups4>(stream, p);
    }
  } else if (m > 32 && 2 * blocks(Wide{}) >= all) {
    launch_products<Wide>(stream, p);
  } else if (blocks(Narrow{}) >= all && fits<Narrow>(p.groups)) {
    launch_products<Narrow>(stream, p);
  } else if (fits<Few>(p.groups)) {
    launch_products<Few>(stream, p);
  } else {
    launch_products<SmallFew>(stream, p);
  }
}

void exact_products(Stream stream, std::span<const ProductOut> outs, const float* x, int m) {
  Products p = describe(outs, DeviceLinear::Format::kAffine8, x, m);
  const int tiles = share_out(p, 1);
  constexpr int kFew = 8 * kExactTokenTiles;
  if (m >= kWideFrom) {
    constexpr size_t kWideBytes = kWideStages * 3 * kWideWarps * kWarp * sizeof(uint4);
    static const bool once = (allow_shared(exact_wide_kernel, kWideBytes), true);
    (void)once;
    launch(exact_wide_kernel, dim3((tiles + kWideWarps - 1) / kWideWarps, (m + kWideTokens - 1) / kWideTokens),
           kWideWarps * kWarp, kWideBytes, stream, p);
  } else {
    launch(exact_kernel, dim3(tiles, (m + kFew - 1) / kFew), kExactWarps * kWarp, 0, stream, p);
  }
}

}  // namespace calla::cuda
