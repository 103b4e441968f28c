#pragma once

// Products of 4-bit matrices with several tokens: the part that products.cu and experts.cu share. Weights are the A
// operand as they lie (tiles.h), the tokens' activations the B operand. What is loaded far ahead lies in rings in
// shared memory, for registers are dear.
//
// With few tokens the weights' way is all that takes time: every warp has its own ring for them, A is bare codes, and
// scale and bias meet the sums of each group in f32. With many tokens it is the tensor cores: warps of a block share
// the tokens' activations in a common ring, and A is weights, rounded to f16.

#include <algorithm>

#include "backend/cuda/chip.h"
#include "backend/cuda/device.cuh"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/tiles.h"

namespace calla::cuda {

// How a block cuts its product. A warp has kRowTiles tiles of 16 rows × kTokenTiles tiles of 8 tokens. kRowWarps warps
// lie side by side over the rows. kSplit times that many have the same outputs and every kSplit-th group each, so that
// a product of few rows still has many loads under way.
template <int kRowTiles_, int kTokenTiles_, int kRowWarps_, int kSplit_, int kStages_, int kBlocks_>
struct Cut {
  static constexpr int kRowTiles = kRowTiles_, kTokenTiles = kTokenTiles_, kRowWarps = kRowWarps_, kSplit = kSplit_,
                       kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;  // of a multiprocessor, at least
  static constexpr int kThreads = kRowWarps * kSplit * kWarp, kLaunchThreads = kThreads;
  static constexpr int kBlockTiles = kRowTiles * kRowWarps;
  static constexpr int kTokens = 8 * kTokenTiles;
  // A stage holds kSplit groups: codes [row tile][group], scales alike, inputs [group][token][64].
  static constexpr int kCodeBytes = kBlockTiles * kSplit * kTileCodeBytes;
  static constexpr int kScaleBytes = kBlockTiles * kSplit * kTileScaleWords * 4;
  static constexpr int kRowBytes = kGroup * 2;
  static constexpr int kStageBytes = kCodeBytes + kScaleBytes + kTokens * kSplit * kRowBytes;
  static constexpr int kSums = kRowTiles * kTokenTiles * 4;  // of a lane
  static constexpr int kCollectBytes = (kSplit - 1) * kRowWarps * kSums * kWarp * 4;
  static constexpr int kRings = std::max(kStages * kStageBytes, kCollectBytes);
  static constexpr int kInputCopies = kTokens * kSplit * kRowBytes / 16 / kThreads;  // of a thread and stage
  static_assert(kInputCopies * kThreads * 16 == kTokens * kSplit * kRowBytes && kStages >= 2);
  static_assert(kRowTiles <= 8, "one copy a lane brings the scales of a warp's tiles");
};

// Shared memory of a block whose tokens have `groups` groups.
template <class C>
constexpr size_t shared_bytes(int groups) {
  if constexpr (requires { C::kFewTokens; }) {
    return C::kRings + size_t(groups) * C::kTokens * C::kRowBytes;
  } else {
    return C::kRings;
  }
}

template <class C>
bool fits(int groups) {
  return shared_bytes<C>(groups) <= size_t(current_chip().shared_bytes);
}

struct BlockProduct {
  const uint8_t* codes;   // of the block's first row tile
  const uint8_t* scales;  // likewise
  int row_tiles;          // that exist of the block's; below 1: none
  int groups;
  int tokens;     // that exist of the block's, at least 1
  const Half* x;  // rows of `groups` groups
  int turns = 1;  // FewCut without split only: how many times kBlockTiles row tiles the block has, one after another
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
        split(threadIdx.x / kWarp / C::kRowWarps),
        first_tile(threadIdx.x / kWarp % C::kRowWarps * C::kRowTiles) {}

  // Tiles past the last are the last again.
  __device__ __forceinline__ int tile_at(int r) const { return min(first_tile + r, p.row_tiles - 1); }
  __device__ __forceinline__ uint32_t stage(int step) const { return base + step % C::kStages * C::kStageBytes; }
  __device__ __forceinline__ void copy_weights(int step) const {
    const int group = step * C::kSplit + split;
    if (step >= steps || group >= p.groups) return;
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
      copy_async(stage(step) + ((first_tile + r) * C::kSplit + split) * kTileCodeBytes + lane * 16,
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

template <int kRowTiles, int kTokenTiles>
__device__ __forceinline__ void set_zero(float (&sum)[kRowTiles][kTokenTiles][4]) {
#pragma unroll
  for (auto& row : sum) {
#pragma unroll
    for (auto& tile : row) {
#pragma unroll
      for (float& v : tile) v = 0;
    }
  }
}

// sum += one group's share of W·x. codes, scales: of the warp's first row tile in a stage, this lane's; x: this lane's
// token of each token tile.
template <class C>
__device__ __forceinline__ void add_group(const uint8_t* codes, const uint8_t* scales, const uint8_t* x,
                                          int token_tiles, int lane, float (&sum)[C::kRowTiles][C::kTokenTiles][4]) {
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

// All warps that have results.
template <class C>
__device__ __forceinline__ void sync_results() {
  if constexpr (C::kLaunchThreads == C::kThreads) {
    __syncthreads();
  } else {
    asm volatile("bar.sync 1, %0;" ::"n"(C::kThreads) : "memory");
  }
}
// Adds up what the kSplit warps with the same outputs have, in order; whether this warp is the one that then has it.
template <class C>
__device__ __forceinline__ bool collect(float (&sum)[C::kRowTiles][C::kTokenTiles][4], uint8_t* shared) {
  if constexpr (C::kSplit > 1) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    constexpr int kEach = C::kRowWarps * C::kSums * kWarp;  // of a split
    float* const sums = reinterpret_cast<float*>(shared) + warp % C::kRowWarps * C::kSums * kWarp + lane;
    const int split = warp / C::kRowWarps;
    const auto value = [&](int v) -> float& { return sum[v / (C::kTokenTiles * 4)][v / 4 % C::kTokenTiles][v % 4]; };
    wait_copies<0>();
    sync_results<C>();
    if (split > 0) {
#pragma unroll
      for (int v = 0; v < C::kSums; ++v) sums[(split - 1) * kEach + v * kWarp] = value(v);
    }
    sync_results<C>();
    if (split > 0) return false;
#pragma unroll
    for (int v = 0; v < C::kSums; ++v) {
#pragma unroll
      for (int other = 0; other < C::kSplit - 1; ++other) value(v) += sums[other * kEach + v * kWarp];
    }
  }
  return true;
}

// W·x for a block. ready() is called once, before anything is read besides weights; row(token) is the row of x that a
// token of the block has. finish(sum, tile) is called by the warps that have the result, in the layout of mma's D:
// sum[r][n] has rows i and i+8 of the warp's row tile tile + r, tokens 2t and 2t+1 of token tile n. Sums of tokens and
// row tiles that do not exist mean nothing.
template <class C, class Ready, class Row, class Finish>
__device__ __forceinline__ void multiply(const BlockProduct& p, uint8_t* shared, const Ready& ready, const Row& row,
                                         const Finish& finish) {
  float sum[C::kRowTiles][C::kTokenTiles][4];
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
  set_zero(sum);
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
    add_group<C>(codes, scales, x, token_tiles, lane, sum);
  }
  if (collect<C>(sum, shared)) finish(sum, first_tile);
}

// How a block cuts a product with few tokens: as Cut, but every warp has its own ring for weights, and the tokens lie
// in shared memory whole, so that after the start no warp waits for another.
template <int kRowTiles_, int kTokenTiles_, int kRowWarps_, int kSplit_, int kStages_, int kBlocks_>
struct FewCut {
  static constexpr int kRowTiles = kRowTiles_, kTokenTiles = kTokenTiles_, kRowWarps = kRowWarps_, kSplit = kSplit_,
                       kStages = kStages_, kBlocks = kBlocks_;
  static constexpr bool kFewTokens = true;
  static constexpr int kThreads = kRowWarps * kSplit * kWarp, kLaunchThreads = kThreads;
  static constexpr int kBlockTiles = kRowTiles * kRowWarps;
  static constexpr int kTokens = 8 * kTokenTiles;
  // A stage holds a group of a warp's row tiles: codes, then scales.
  static constexpr int kCodeBytes = kRowTiles * kTileCodeBytes;
  static constexpr int kStageBytes = kCodeBytes + kRowTiles * kTileScaleWords * 4;
  static constexpr int kRowBytes = kGroup * 2;
  static constexpr int kSums = kRowTiles * kTokenTiles * 4;
  static constexpr int kRings = kRowWarps * kSplit * kStages * kStageBytes;
  static_assert(kRowTiles <= 8 && kStages >= 2 && (kSplit - 1) * kRowWarps * kSums * kWarp * 4 <= kRings);
};

// As the other multiply(). A code in the lowest bits of an f16 is the number code·2^-24, four bits higher code·2^-20;
// tensor cores multiply such numbers exactly. The sums of the tokens' groups, for the biases, are a product with ones.
template <class C, class Ready, class Row, class Finish>
requires C::kFewTokens __device__ __forceinline__ void multiply(const BlockProduct& p, uint8_t* shared,
                                                                const Ready& ready, const Row& row,
                                                                const Finish& finish) {
  float sum[C::kRowTiles][C::kTokenTiles][4];
  constexpr uint32_t kLow = 0x000f000f, kHigh = 0x00f000f0, kOne = 0x3c003c00;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, t = lane % 4;
  const int first_tile = warp % C::kRowWarps * C::kRowTiles;
  const int first_group = warp / C::kRowWarps;
  uint8_t* const ring = shared + warp * C::kStages * C::kStageBytes;
  int next_group = first_group, next_tile = first_tile, turns_left = p.turns;  // of the copies
  const auto copy_weights = [&](int slot) {
    if (turns_left > 0 && next_tile < p.row_tiles && next_group < p.groups) {
      const uint32_t to = shared_address(ring) + slot * C::kStageBytes;
      const auto tile_at = [&](int r) { return size_t(min(next_tile + r, p.row_tiles - 1) * p.groups + next_group); };
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
        copy_async(to + r * kTileCodeBytes + lane * 16, p.codes + tile_at(r) * kTileCodeBytes + lane * 16);
      }
      if (lane < C::kRowTiles * 4) {
        copy_async(to + C::kCodeBytes + lane * 16,
                   p.scales + tile_at(lane / 4) * (kTileScaleWords * 4) + lane % 4 * 16);
      }
    }
    commit_copies();
    next_group += C::kSplit;
    if (next_group >= p.groups) {
      next_group = first_group;
      next_tile += C::kBlockTiles;
      --turns_left;
    }
  };
#pragma unroll
  for (int s = 0; s < C::kStages - 1; ++s) copy_weights(s);
  ready();

  // [group][token][64], copies of 16 bytes exchanged so that lanes that read at once meet all banks.
  uint8_t* const tokens = shared + C::kRings;
  const int row_copies = p.groups * 8;
  for (int token = warp; token < p.tokens; token += C::kThreads / kWarp) {
    const uint4* const from = reinterpret_cast<const uint4*>(p.x) + size_t(row(token)) * row_copies;
    for (int c = lane; c < row_copies; c += kWarp) {
      copy_async(shared_address(tokens) + (c / 8 * C::kTokens + token) * C::kRowBytes + (c % 8 ^ token % 8) * 16,
                 from + c);
    }
  }
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  const int token_tiles = (p.tokens + 7) / 8;
  const uint32_t ones[4] = {kOne, kOne, kOne, kOne};
  int slot = 0, free = C::kStages - 1;
  for (int turn = 0; turn < p.turns; ++turn) {
    const int tile = first_tile + turn * C::kBlockTiles;
    set_zero(sum);
    for (int group = first_group; group < p.groups && tile < p.row_tiles; group += C::kSplit) {
      wait_copies<C::kStages - 2>();
      __syncwarp();
      copy_weights(free);
      const uint8_t* const stage = ring + slot * C::kStageBytes;
      free = slot;
      slot = slot + 1 == C::kStages ? 0 : slot + 1;

      const uint8_t* const x = tokens + (group * C::kTokens + i) * C::kRowBytes;
      uint32_t a[C::kRowTiles][4][4];
      float scale[C::kRowTiles][2], bias[C::kRowTiles][2];
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
        const uint4 code = *reinterpret_cast<const uint4*>(stage + r * kTileCodeBytes + lane * 16);
        const uint32_t words[4] = {code.x, code.y, code.z, code.w};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          a[r][s][0] = words[s] & kLow;
          a[r][s][1] = words[s] & kHigh;
          a[r][s][2] = words[s] >> 8 & kLow;
          a[r][s][3] = words[s] >> 8 & kHigh;
        }
        const uint2 pair =
            *reinterpret_cast<const uint2*>(stage + C::kCodeBytes + r * (kTileScaleWords * 4) + i * sizeof(uint2));
        scale[r][0] = scale_of(pair.x) * 0x1p24f;
        scale[r][1] = scale_of(pair.y) * 0x1p20f;
        bias[r][0] = bias_of(pair.x);
        bias[r][1] = bias_of(pair.y);
      }
#pragma unroll
      for (int n = 0; n < C::kTokenTiles; ++n) {
        if (n >= token_tiles) break;
        const uint4 lo = *reinterpret_cast<const uint4*>(x + 8 * n * C::kRowBytes + (2 * t ^ i) * 16);
        const uint4 hi = *reinterpret_cast<const uint4*>(x + 8 * n * C::kRowBytes + ((2 * t + 1) ^ i) * 16);
        const uint32_t b[4][2] = {{lo.x, lo.y}, {lo.z, lo.w}, {hi.x, hi.y}, {hi.z, hi.w}};
        float d[C::kRowTiles][4] = {}, total[4] = {};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
#pragma unroll
          for (int r = 0; r < C::kRowTiles; ++r) mma(d[r], a[r][s], b[s][0], b[s][1]);
          mma(total, ones, b[s][0], b[s][1]);
        }
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[r][n][j] += scale[r][j / 2] * d[r][j] + bias[r][j / 2] * total[j % 2];
        }
      }
    }
    if (collect<C>(sum, shared)) finish(sum, tile);
  }
}

}  // namespace calla::cuda
