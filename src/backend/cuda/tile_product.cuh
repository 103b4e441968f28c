#pragma once

// Products of 4-bit matrices with several tokens: the part that products.cu and experts.cu share. Weights become f16 in
// registers, one rounding each, and are the A operand as they lie (tiles.h); the tokens' activations are the B operand,
// from shared memory. Codes, scales and activations come through a ring of stages in shared memory, so that loads far
// ahead cost no registers.

#include <algorithm>

#include "backend/cuda/device.cuh"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/tiles.h"

namespace calla::cuda {

// How a block cuts its product. A warp has kRowTiles tiles of 16 rows × kTokenTiles tiles of 8 tokens. kRowWarps warps
// lie side by side over the rows. kSplit warps have the same outputs and every kSplit-th group each, so that a product
// of few rows still has many loads under way.
template <int kRowTiles_, int kTokenTiles_, int kRowWarps_, int kSplit_, int kStages_, int kBlocks_>
struct Cut {
  static constexpr int kRowTiles = kRowTiles_, kTokenTiles = kTokenTiles_, kRowWarps = kRowWarps_, kSplit = kSplit_,
                       kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;  // of a multiprocessor, at least
  static constexpr int kThreads = kRowWarps * kSplit * kWarp;
  static constexpr int kBlockTiles = kRowTiles * kRowWarps;
  static constexpr int kTokens = 8 * kTokenTiles;
  // A stage holds kSplit groups: codes [row tile][group], scales alike, inputs [group][token][64].
  static constexpr int kCodeBytes = kBlockTiles * kSplit * kTileCodeBytes;
  static constexpr int kScaleBytes = kBlockTiles * kSplit * kTileScaleWords * 4;
  static constexpr int kRowBytes = kGroup * 2;
  static constexpr int kStageBytes = kCodeBytes + kScaleBytes + kTokens * kSplit * kRowBytes;
  static constexpr int kSums = kRowTiles * kTokenTiles * 4;  // of a lane
  static constexpr int kReduceBytes = kSplit == 1 ? 0 : kSplit * kRowWarps * kSums * kWarp * 4;
  static constexpr int kSharedBytes = std::max(kStages * kStageBytes, kReduceBytes);
  static constexpr int kInputCopies = kTokens * kSplit * kRowBytes / 16 / kThreads;  // of a thread and stage
  static constexpr bool kWarpGroups = false;
  static_assert(kInputCopies * kThreads * 16 == kTokens * kSplit * kRowBytes && kStages >= 2);
  static_assert(kRowTiles <= 8, "one copy a lane brings the scales of a warp's tiles");
};

struct BlockProduct {
  const uint8_t* codes;   // of the block's first row tile
  const uint8_t* scales;  // likewise
  int row_tiles;          // that exist of the block's; below 1: none
  int groups;
  int tokens;     // that exist of the block's, at least 1
  const Half* x;  // rows of `groups` groups
};

// A thread's part in filling the ring.
template <class C>
struct Ring {
  static constexpr int kRowCopies = 8 * C::kSplit;  // of 16 bytes: a token's part of a stage
  static constexpr uint32_t kNone = 0xffffffff;

  const BlockProduct& p;
  uint32_t base;
  int steps;                        // stages that the product has
  int lane, split, first_tile;      // of this warp
  uint32_t input[C::kInputCopies];  // where in x this thread's copies begin, in 16 bytes: registers are dear

  __device__ __forceinline__ Ring(const BlockProduct& product, uint8_t* shared)
      : p(product),
        base(shared_address(shared)),
        steps((product.groups + C::kSplit - 1) / C::kSplit),
        lane(threadIdx.x % kWarp),
        split(threadIdx.x / kWarp % C::kSplit),
        first_tile(threadIdx.x / kWarp / C::kSplit * C::kRowTiles) {}

  // Tiles past the last are the last again.
  __device__ __forceinline__ int tile_at(int r) const { return min(first_tile + r, p.row_tiles - 1); }
  __device__ __forceinline__ uint32_t stage(int step) const { return base + step % C::kStages * C::kStageBytes; }
  __device__ __forceinline__ void copy_weights(int step) const {
    const int group = step * C::kSplit + split;
    if (step >= steps || group >= p.groups) return;
    // Warp groups read words of other lanes: exchanging places keeps those in different banks.
    const int place = C::kWarpGroups ? lane ^ lane / 8 : lane;
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
      copy_async(stage(step) + ((first_tile + r) * C::kSplit + split) * kTileCodeBytes + place * 16,
                 p.codes + size_t(tile_at(r) * p.groups + group) * kTileCodeBytes + lane * 16);
    }
    if (lane < C::kRowTiles * 4) {
      copy_async(stage(step) + C::kCodeBytes + ((first_tile + lane / 4) * C::kSplit + split) * (kTileScaleWords * 4) +
                     lane % 4 * 16,
                 p.scales + size_t(tile_at(lane / 4) * p.groups + group) * (kTileScaleWords * 4) + lane % 4 * 16);
    }
  }
  static __device__ __forceinline__ int token_of(int j) {
    return (j * C::kThreads + threadIdx.x) / kRowCopies;
  }
  template <class Row>
  __device__ __forceinline__ void find_inputs(const Row& row) {
#pragma unroll
    for (int j = 0; j < C::kInputCopies; ++j) {
      const int token = token_of(j);
      input[j] = token < p.tokens ? row(token) * uint32_t(p.groups * 8) + threadIdx.x % kRowCopies : kNone;
    }
  }
  // The copies of a token's 128 bytes change places with each other: lanes of eight tokens, or two, that read at once
  // then meet all banks.
  __device__ __forceinline__ void copy_inputs(int step) const {
    const int column = threadIdx.x % kRowCopies;
    if (step >= steps || step * C::kSplit + column / 8 >= p.groups) return;
    const uint32_t to = stage(step) + C::kCodeBytes + C::kScaleBytes + column / 8 * C::kTokens * C::kRowBytes;
#pragma unroll
    for (int j = 0; j < C::kInputCopies; ++j) {
      const int token = token_of(j);
      if (input[j] == kNone) continue;
      copy_async(to + token * C::kRowBytes + (column % 8 ^ token % 8) * 16,
                 reinterpret_cast<const uint4*>(p.x) + input[j] + step * kRowCopies);
    }
  }
};

// Scale and bias of a tile's rows i and i+8.
struct RowScales {
  __half2 scale[2], bias[2];
  __device__ __forceinline__ explicit RowScales(const uint8_t* from) {
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    scale[0] = __float2half2_rn(scale_of(words.x));
    bias[0] = __float2half2_rn(bias_of(words.x));
    scale[1] = __float2half2_rn(scale_of(words.y));
    bias[1] = __float2half2_rn(bias_of(words.y));
  }
};

// Sixteen weights of a row tile's step as an A operand.
__device__ __forceinline__ void expand(uint32_t word, const RowScales& s, uint32_t (&a)[4]) {
  unpack_codes(word, a);
#pragma unroll
  for (int j = 0; j < 4; ++j) a[j] = bits(__hfma2(as_half2(a[j]), s.scale[j % 2], s.bias[j % 2]));
}

// sum[r][n] = the warp's share of W·x in the layout of mma's D: rows i and i+8 of the warp's row tile r, tokens 2t and
// 2t+1 of token tile n. With kSplit > 1 only reduce() makes it the whole. ready() is called once, before anything is
// read besides weights; row(token) is the row of x that a token of the block has. Sums of tokens and row tiles that do
// not exist mean nothing.
template <class C, class Ready, class Row>
__device__ __forceinline__ void multiply(const BlockProduct& p, uint8_t* shared, const Ready& ready, const Row& row,
                                         float (&sum)[C::kRowTiles][C::kTokenTiles][4]) {
  Ring<C> ring(p, shared);
  const int lane = ring.lane, first_tile = ring.first_tile, split = ring.split;
#pragma unroll
  for (int s = 0; s < C::kStages - 1; ++s) ring.copy_weights(s);
  ready();
  ring.find_inputs(row);
#pragma unroll
  for (int s = 0; s < C::kStages - 1; ++s) {
    ring.copy_inputs(s);
    commit_copies();
  }
#pragma unroll
  for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < C::kTokenTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[r][n][j] = 0;
    }
  }
  const int token_tiles = (p.tokens + 7) / 8;
  const bool live = first_tile < p.row_tiles;
  for (int step = 0; step < ring.steps; ++step) {
    wait_copies<C::kStages - 2>();
    __syncthreads();
    ring.copy_weights(step + C::kStages - 1);
    ring.copy_inputs(step + C::kStages - 1);
    commit_copies();
    if (!live || step * C::kSplit + split >= p.groups) continue;

    const uint8_t* const stage = shared + step % C::kStages * C::kStageBytes;
    const uint8_t* const codes = stage + (first_tile * C::kSplit + split) * kTileCodeBytes + lane * 16;
    const uint8_t* const scales =
        stage + C::kCodeBytes + (first_tile * C::kSplit + split) * (kTileScaleWords * 4) + lane / 4 * 8;
    const uint8_t* const x = stage + C::kCodeBytes + C::kScaleBytes + (split * C::kTokens + lane / 4) * C::kRowBytes;
    uint4 code[C::kRowTiles];
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
      code[r] = *reinterpret_cast<const uint4*>(codes + r * C::kSplit * kTileCodeBytes);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of the group's four steps of 16 columns
      const uint8_t* const mine = x + ((2 * (lane % 4) + half) ^ lane / 4) * 16;
      uint4 b = *reinterpret_cast<const uint4*>(mine);
      uint32_t a[C::kRowTiles][2][4];
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
        const RowScales s(scales + r * C::kSplit * (kTileScaleWords * 4));
        expand(half == 0 ? code[r].x : code[r].z, s, a[r][0]);
        expand(half == 0 ? code[r].y : code[r].w, s, a[r][1]);
      }
#pragma unroll
      for (int n = 0; n < C::kTokenTiles; ++n) {
        if (n >= token_tiles) break;
        uint4 next = b;
        if (n + 1 < C::kTokenTiles) next = *reinterpret_cast<const uint4*>(mine + (n + 1) * 8 * C::kRowBytes);
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r) mma(sum[r][n], a[r][0], b.x, b.y);
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r) mma(sum[r][n], a[r][1], b.z, b.w);
        b = next;
      }
    }
  }
}

// Adds up what the kSplit warps of each row warp have, in order. put(row tile of the block, token tile, lane, j, sum)
// gets each sum once, from any thread.
template <class C, class Put>
__device__ __forceinline__ void reduce(const float (&sum)[C::kRowTiles][C::kTokenTiles][4], uint8_t* shared,
                                       const Put& put) {
  float* const sums = reinterpret_cast<float*>(shared);  // [split][row warp][value][lane]
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  constexpr int kEach = C::kRowWarps * C::kSums * kWarp;
  wait_copies<0>();
  __syncthreads();
#pragma unroll
  for (int v = 0; v < C::kSums; ++v) {
    sums[warp % C::kSplit * kEach + (warp / C::kSplit * C::kSums + v) * kWarp + lane] =
        sum[v / (C::kTokenTiles * 4)][v / 4 % C::kTokenTiles][v % 4];
  }
  __syncthreads();
  for (int at = threadIdx.x; at < kEach; at += C::kThreads) {
    float total = 0;
#pragma unroll
    for (int s = 0; s < C::kSplit; ++s) total += sums[s * kEach + at];
    const int v = at / kWarp;
    put(v / (C::kTokenTiles * 4), v / 4 % C::kTokenTiles, at % kWarp, v % 4, total);
  }
}

}  // namespace calla::cuda
