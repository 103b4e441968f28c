#include "backend/cuda/experts.h"

#include <algorithm>

#include "backend/cuda/chip.h"
#include "backend/cuda/experts.cuh"

namespace calla::cuda {
namespace {

constexpr int kMaxExperts = 512;
constexpr int kWordTokens = 32;  // tokens of a word of Routing::members

// Row tiles, token tiles, row warps, split, stages, blocks.
using Few = FewCut<2, 2, 4, 2, 4, 2>;       // 128 rows × 16 slots
using Long = FewCut<2, 2, 8, 1, 4, 2>;      // 256 × 16, several times
using SmallFew = FewCut<2, 2, 4, 2, 3, 1>;  // the same for chips with less shared memory
using Many = Cut<4, 8, 4, 1, 4, 2>;         // 256 × 64

// How many slots a tile has at most: more than most experts have, so that their weights are read once.
int tile_slots(int m, int experts, int top_k) {
  return m * top_k <= 8 * experts ? Few::kTokens : current_chip().has_wgmma ? ExpertGroups::kTokens : Many::kTokens;
}
int tiles_up_to(int slots, int size) {
  return (slots + size - 1) / size;
}
int max_tiles(int m, int experts, int top_k) {
  const int size = tile_slots(m, experts, top_k), slots = m * top_k;
  return std::min(slots, slots / size + experts) + tiles_up_to(m, size);
}

struct Choice {
  Routing r;
  const float *router, *shared;
  int m, words, tile;
};

// The choice of one token by one warp: lane k < top_k has the k-th expert and its weight.
__device__ __forceinline__ void choose(const Choice& p, int token, int lane, uint32_t* members) {
  constexpr int kEach = kMaxExperts / kWarp;
  const float* const logits = p.router + size_t(token) * p.r.experts;
  // A number that sorts like the logit, above zero.
  uint32_t key[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int e = lane + kWarp * j;
    if (e < p.r.experts) {
      const uint32_t raw = __float_as_uint(logits[e]);
      key[j] = raw & 0x80000000u ? ~raw : raw | 0x80000000u;
    } else {
      key[j] = 0;
    }
  }
  float best = 0, total = 0, mine = 0;
  int expert = 0;
  for (int k = 0; k < p.r.top_k; ++k) {
    uint32_t top = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) top = max(top, key[j]);
    top = __reduce_max_sync(0xffffffff, top);
    uint32_t index = kMaxExperts;
#pragma unroll
    for (int j = kEach - 1; j >= 0; --j) {
      if (key[j] == top) index = lane + kWarp * j;
    }
    index = __reduce_min_sync(0xffffffff, index);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (index == lane + kWarp * j) key[j] = 0;
    }
    const float logit = __uint_as_float(top & 0x80000000u ? top ^ 0x80000000u : ~top);
    if (k == 0) best = logit;
    const float share = __expf(logit - best);
    total += share;
    if (lane == k) {
      mine = share;
      expert = index;
    }
  }
  if (lane < p.r.top_k) {
    p.r.chosen[token * p.r.top_k + lane] = expert;
    p.r.weight[token * (p.r.top_k + 1) + lane] = mine / total;
    atomicOr(members + expert, 1u << token % kWordTokens);
  }
  if (lane == p.r.top_k) p.r.weight[token * (p.r.top_k + 1) + lane] = sigmoid(p.shared[token]);
}

// Exclusive sums over a block, of two numbers at once. warps: room for a number of each warp.
__device__ __forceinline__ int2 sums_before(int2 v, int2* warps) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int2 sum = v;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int a = __shfl_up_sync(0xffffffff, sum.x, offset), b = __shfl_up_sync(0xffffffff, sum.y, offset);
    if (lane >= offset) sum = {sum.x + a, sum.y + b};
  }
  if (lane == kWarp - 1) warps[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum = {sum.x + warps[w].x, sum.y + warps[w].y};
  return {sum.x - v.x, sum.y - v.y};
}

// Puts this block's share of the choices into their slots; block 0 lists the tiles. The block has a thread for each
// expert at least.
__device__ __forceinline__ void place(const Choice& p) {
  __shared__ int first[kMaxExperts];
  __shared__ int2 warps[kWarp];
  const int e = threadIdx.x, shared_tiles = (p.m + p.tile - 1) / p.tile;
  const int slots = e < p.r.experts ? p.r.slots[e] : 0, tiles = (slots + p.tile - 1) / p.tile;
  const int2 before = sums_before({slots, tiles}, warps);
  if (e < p.r.experts) first[e] = before.x;
  if (blockIdx.x == 0) {
    for (int j = 0; j < tiles; ++j) {
      p.r.tiles[shared_tiles + before.y + j] = {e, before.x + j * p.tile, min(p.tile, slots - j * p.tile), 0};
    }
    if (e == p.r.experts - 1) *p.r.tile_count = shared_tiles + before.y + tiles;
    for (int j = e; j < shared_tiles; j += blockDim.x) {
      p.r.tiles[j] = {p.r.experts, p.m * p.r.top_k + j * p.tile, min(p.tile, p.m - j * p.tile), 0};
    }
  }
  __syncthreads();
  const int start = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  for (int i = start; i < p.m * p.r.top_k; i += step) {
    const int token = i / p.r.top_k, expert = p.r.chosen[i], word = expert * p.words + token / kWordTokens;
    const uint32_t earlier = p.r.members[word] & ((1u << token % kWordTokens) - 1);
    const int slot = first[expert] + p.r.before[word] + __popc(earlier);
    p.r.slot_of[i] = slot;
    p.r.slot_token[slot] = token;
  }
  for (int i = start; i < p.m; i += step) p.r.slot_token[p.m * p.r.top_k + i] = i;
}

// A warp a token; the block has the tokens of one word of each expert's members. A block that has all tokens does the
// rest as well.
__global__ __launch_bounds__(kWordTokens* kWarp) void choose_kernel(const __grid_constant__ Choice p) {
  __shared__ uint32_t members[kMaxExperts];
  const int token = blockIdx.x * kWordTokens + threadIdx.x / kWarp;
  for (int e = threadIdx.x; e < p.r.experts; e += blockDim.x) members[e] = 0;
  __syncthreads();
  wait_for_previous();
  launch_next();
  if (token < p.m) choose(p, token, threadIdx.x % kWarp, members);
  __syncthreads();
  for (int e = threadIdx.x; e < p.r.experts; e += blockDim.x) {
    p.r.members[e * p.words + blockIdx.x] = members[e];
    if (gridDim.x == 1) {
      p.r.before[e] = 0;
      p.r.slots[e] = __popc(members[e]);
    }
  }
  if (gridDim.x > 1) return;
  __syncthreads();
  place(p);
}

// A warp an expert.
__global__ void count_kernel(const __grid_constant__ Choice p) {
  const int e = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  wait_for_previous();
  launch_next();
  if (e >= p.r.experts) return;
  int count = 0;
  for (int from = 0; from < p.words; from += kWarp) {
    const int word = from + lane;
    const int here = word < p.words ? __popc(p.r.members[e * p.words + word]) : 0;
    int sum = here;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int v = __shfl_up_sync(0xffffffff, sum, offset);
      if (lane >= offset) sum += v;
    }
    if (word < p.words) p.r.before[e * p.words + word] = count + sum - here;
    count += __shfl_sync(0xffffffff, sum, kWarp - 1);
  }
  if (lane == 0) p.r.slots[e] = count;
}

__global__ __launch_bounds__(kMaxExperts) void place_kernel(const __grid_constant__ Choice p) {
  wait_for_previous();
  launch_next();
  place(p);
}

struct Combine {
  Routing r;
  int m, hidden;
  const Half* partial;
  float* y;
  bool add;
};

// A thread eight columns of one token.
__global__ void combine_kernel(const __grid_constant__ Combine p) {
  const int each = p.hidden / 8;
  const int index = blockIdx.x * blockDim.x + threadIdx.x, token = index / each, column = index % each;
  wait_for_previous();
  launch_next();
  if (token >= p.m) return;
  float sum[8] = {};
  for (int k = 0; k <= p.r.top_k; ++k) {
    const int slot = k < p.r.top_k ? p.r.slot_of[token * p.r.top_k + k] : p.m * p.r.top_k + token;
    const float weight = p.r.weight[token * (p.r.top_k + 1) + k];
    const uint4 v = reinterpret_cast<const uint4*>(p.partial)[size_t(slot) * each + column];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 two = __half22float2(as_half2(words[j]));
      sum[2 * j] += weight * two.x;
      sum[2 * j + 1] += weight * two.y;
    }
  }
  float4* const y = reinterpret_cast<float4*>(p.y) + size_t(index) * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float4 v{sum[4 * h], sum[4 * h + 1], sum[4 * h + 2], sum[4 * h + 3]};
    if (p.add) {
      const float4 old = y[h];
      v = {v.x + old.x, v.y + old.y, v.z + old.z, v.w + old.w};
    }
    y[h] = v;
  }
}

template <bool kInner>
void multiply_experts(Stream stream, const Experts& p, int m) {
  const int tiles = max_tiles(m, p.r.experts, p.r.top_k), groups = std::max(p.routed.groups, p.shared.groups);
  switch (tile_slots(m, p.r.experts, p.r.top_k)) {
    case Few::kTokens:
      // A block should have enough to do to be worth its start, while there are blocks for all.
      if (groups <= 8 && p.routed_slots >= 64 && fits<Long>(groups)) {
        launch_experts<Long, kInner>(stream, p, tiles, 2);
      } else if (fits<Few>(groups)) {
        launch_experts<Few, kInner>(stream, p, tiles);
      } else {
        launch_experts<SmallFew, kInner>(stream, p, tiles);
      }
      return;
    case Many::kTokens:
      return launch_experts<Many, kInner>(stream, p, tiles);
    default:
      return kInner ? launch_inner_groups(stream, p, tiles) : launch_outer_groups(stream, p, tiles);
  }
}

ExpertMatrix matrix_of(const DeviceLinear& w, size_t codes, size_t scales) {
  CHECK(w.format == DeviceLinear::Format::kAffine4 && w.out % kTileRows == 0, "experts that there is no kernel for");
  return {static_cast<const uint8_t*>(w.weight),
          reinterpret_cast<const uint8_t*>(w.scales),
          codes,
          scales,
          w.out / kTileRows,
          w.in / kGroup};
}

}  // namespace

Routing Routing::take(Arena& arena, int max_rows, int experts, int top_k) {
  CHECK(experts <= kMaxExperts && top_k <= std::min(kMaxTopK, experts), "more experts than can be chosen from");
  Routing r;
  r.max_rows = max_rows;
  r.experts = experts;
  r.top_k = top_k;
  const size_t choices = size_t(max_rows) * top_k, words = tiles_up_to(max_rows, kWordTokens);
  r.chosen = arena.take<int32_t>(choices);
  r.weight = arena.take<float>(choices + max_rows);
  r.slot_of = arena.take<int32_t>(choices);
  r.slot_token = arena.take<int32_t>(choices + max_rows);
  r.members = arena.take<uint32_t>(experts * words);
  r.before = arena.take<int32_t>(experts * words);
  r.slots = arena.take<int32_t>(experts);
  r.tiles = arena.take<ExpertTile>(choices / Few::kTokens + experts + max_rows / Few::kTokens + 1);
  r.tile_count = arena.take<int32_t>(1);
  return r;
}

void choose_experts(Stream stream, const float* router_logits, const float* shared_logits, int m, const Routing& r) {
  CHECK(m >= 1 && m <= r.max_rows, "more rows than the routing has room for");
  const int words = tiles_up_to(m, kWordTokens);
  const Choice p{r, router_logits, shared_logits, m, words, tile_slots(m, r.experts, r.top_k)};
  launch(choose_kernel, words, kWordTokens * kWarp, 0, stream, p);
  if (words == 1) return;
  launch(count_kernel, tiles_up_to(r.experts, 8), 8 * kWarp, 0, stream, p);
  launch(place_kernel, tiles_up_to(m * r.top_k, kMaxExperts), kMaxExperts, 0, stream, p);
}

void experts_inner(Stream stream, const DeviceExperts& routed, const DeviceExperts& shared, const Half* h, int m,
                   const Routing& r, Half* inner) {
  const Experts p{matrix_of(routed.gate_up, routed.gate_up_codes, routed.gate_up_scales),
                  matrix_of(shared.gate_up, 0, 0),
                  r,
                  m * r.top_k,
                  h,
                  inner};
  multiply_experts<true>(stream, p, m);
}

void experts_outer(Stream stream, const DeviceExperts& routed, const DeviceExperts& shared, const Half* inner, int m,
                   const Routing& r, Half* partial, float* y, bool add) {
  const Experts p{matrix_of(routed.down, routed.down_codes, routed.down_scales),
                  matrix_of(shared.down, 0, 0),
                  r,
                  m * r.top_k,
                  inner,
                  partial};
  multiply_experts<false>(stream, p, m);
  constexpr int kThreads = 256;
  const int hidden = routed.down.out;
  const Combine sums{r, m, hidden, partial, y, add};
  launch(combine_kernel, tiles_up_to(m * (hidden / 8), kThreads), kThreads, 0, stream, sums);
}

}  // namespace calla::cuda
