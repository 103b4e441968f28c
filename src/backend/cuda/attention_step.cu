// Attention of single new tokens over long pasts: as many bytes as there are keys and values, read once. One block has
// a part of the context of one KV head; its query heads, eight at a time, share the keys and values in registers.
//
// Fragments. A warp works on tiles of 16 positions. Scores are K·Qᵀ: positions are the rows of mma.m16n8k16, the eight
// query heads its columns; outputs are Vᵀ·Pᵀ: dims are the rows. So no row of a tensor-core tile is wasted, and a lane
// has the same two heads in scores and outputs. Keys and values go from memory to registers in 16-byte loads: keys as
// they come (the order of dims inside a product is free, queries take the same), pairs of values by byte permutation.

#include <algorithm>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/launch.cuh"

namespace calla::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kResident = 2;  // blocks on a multiprocessor: small ones find room beside the kernel ahead
constexpr int kThreads = kWarps * kWarp;
constexpr int kTile = 16;       // positions a warp works on at a time
constexpr int kHeads = 8;       // query heads of a block
constexpr int kBlockTiles = 4;  // tiles that make a block worth its while
constexpr int kMaxSplits = 256;
constexpr int kQueryStride = kHeadDim + 32;  // bf16: two heads of a phase of ldmatrix-like reads fall in other banks
constexpr int kOutStride = kHeadDim + 8;
constexpr int kMergeDims = 4 * kWarp;  // of a block
constexpr int kMergeGroups = 16;       // of parts, at most

struct Part {
  float max, sum;  // of 2^score
};

// The first `used` of the splits have work.
__device__ int used_splits(int position, int splits) {
  const int tiles = position / kTile + 1;
  return min(splits, (tiles + kBlockTiles - 1) / kBlockTiles);
}

struct Shared {
  __nv_bfloat16 q[kHeads][kQueryStride];
  __nv_bfloat16 k[kHeadDim], v[kHeadDim];  // of the new token
  float max[kHeads][kWarps], sum[kHeads][kWarps];
  float o[kWarps][kHeads][kOutStride];
};

// Lane (i, t): rows i and i+8, of each 32 dims the eight from 8t on.
struct Keys {
  uint4 row[2][kHeadDim / 32];
};
// Lane (i, t): rows 2t, 2t+1, 2t+8, 2t+9, of each 64 dims the eight from 8i on.
struct Values {
  uint4 row[4][kHeadDim / 64];
};

__device__ __forceinline__ Keys load_keys(const __nv_bfloat16* tile, int i, int t) {
  Keys k;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j)
      k.row[r][j] = load_once(reinterpret_cast<const uint4*>(tile + (i + 8 * r) * kHeadDim + 32 * j + 8 * t));
  }
  return k;
}

__device__ __forceinline__ Values load_values(const __nv_bfloat16* tile, int i, int t) {
  Values v;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = 2 * t + (r & 1) + 8 * (r >> 1);
#pragma unroll
    for (int j = 0; j < kHeadDim / 64; ++j)
      v.row[r][j] = load_once(reinterpret_cast<const uint4*>(tile + row * kHeadDim + 64 * j + 8 * i));
  }
  return v;
}

// Row `last` of the tile is the new token, which is not in the page yet; what lies after it is anything, even NaN.
__device__ __forceinline__ void finish_tile(Keys& keys, Values& values, const Shared& s, int last, int i, int t) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (i + 8 * r == last) {
#pragma unroll
      for (int j = 0; j < kHeadDim / 32; ++j) keys.row[r][j] = *reinterpret_cast<const uint4*>(&s.k[32 * j + 8 * t]);
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = 2 * t + (r & 1) + 8 * (r >> 1);
    if (row >= last) {
#pragma unroll
      for (int j = 0; j < kHeadDim / 64; ++j)
        values.row[r][j] = row == last ? *reinterpret_cast<const uint4*>(&s.v[64 * j + 8 * i]) : make_uint4(0, 0, 0, 0);
    }
  }
}

// [position i, i+8][head 2t, 2t+1]
__device__ __forceinline__ void score_tile(const Keys& keys, const Shared& s, int i, int t, float (&score)[4]) {
  float sums[4][4] = {};  // chains of products, so that they overlap
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    const uint4 q = *reinterpret_cast<const uint4*>(&s.q[i][32 * j + 8 * t]);
    const uint4 low = keys.row[0][j], high = keys.row[1][j];
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    mma_bf16(sums[2 * j % 4], first, q.x, q.y);
    mma_bf16(sums[(2 * j + 1) % 4], second, q.z, q.w);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) score[e] = (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]);
}

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Running softmax of a lane's two heads.
struct Running {
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  float o[kHeadDim / 64][4][4] = {};  // [64 dims][pair τ]: dims 64j + 8i + 2τ {+0, +1}, each of heads 2t, 2t+1
};

__device__ __forceinline__ void add_tile(Running& a, float (&score)[4], const Values& values) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top = fmaxf(score[h], score[2 + h]);
#pragma unroll
    for (int offset = 4; offset < kWarp; offset *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, offset));
    top = fmaxf(a.max[h], top);  // finite: a tile has at least one position
    const float keep = exp2_fast(a.max[h] - top);
    a.max[h] = top;
    score[h] = exp2_fast(score[h] - top);
    score[2 + h] = exp2_fast(score[2 + h] - top);
    a.sum[h] = a.sum[h] * keep + (score[h] + score[2 + h]);
#pragma unroll
    for (auto& dims : a.o) {
#pragma unroll
      for (auto& pair : dims) {
        pair[h] *= keep;
        pair[2 + h] *= keep;
      }
    }
  }
  const uint32_t b0 = transposed(pack_bf16(score[0], score[1])), b1 = transposed(pack_bf16(score[2], score[3]));
#pragma unroll
  for (int j = 0; j < kHeadDim / 64; ++j) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const uint32_t r0 = word(values.row[0][j], p), r1 = word(values.row[1][j], p), r2 = word(values.row[2][j], p),
                     r3 = word(values.row[3][j], p);
      const uint32_t pairs[4] = {__byte_perm(r0, r1, 0x5410), __byte_perm(r0, r1, 0x7632), __byte_perm(r2, r3, 0x5410),
                                 __byte_perm(r2, r3, 0x7632)};
      mma_bf16(a.o[j][p], pairs, b0, b1);
    }
  }
}

// Grid: (splits, kv_heads · eights of heads, runs).
__global__ void __launch_bounds__(kThreads, kResident)
    attend_parts(const float* qg, const float* k, const float* v, const __grid_constant__ QkNorm norm,
                 const DeviceRun* runs, const __grid_constant__ StateSizes sizes, int layer, __nv_bfloat16* pool,
                 float* part_o, Part* parts) {
  extern __shared__ __align__(16) char shared_bytes[];
  Shared& s = *reinterpret_cast<Shared*>(shared_bytes);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, t = lane % 4;
  const DeviceRun run = runs[blockIdx.z];
  const int splits = gridDim.x, used = used_splits(run.position, splits), split = blockIdx.x;
  if (run.count != 1 || split >= used) return;
  const int tiles = run.position / kTile + 1;
  const int begin = static_cast<int>(int64_t{tiles} * split / used),
            end = static_cast<int>(int64_t{tiles} * (split + 1) / used);
  const int group = sizes.heads / sizes.kv_heads, eights = (group + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.y / eights, eight = blockIdx.y % eights;
  const int first_head = kv_head * group + eight * kHeads, head_count = min(kHeads, group - eight * kHeads);

  const size_t keys_at = page_offset(sizes, 0, layer, 0, kv_head), values_at = page_offset(sizes, 0, layer, 1, kv_head);
  const auto tile_at = [&](int page, int tile) {
    return pool + size_t(page) * sizes.page_size + size_t(tile % (kPagePositions / kTile)) * kTile * kHeadDim;
  };
  const auto page_of = [&](int tile) { return tile < end ? run.pages[tile / (kPagePositions / kTile)] : 0; };

  // What earlier steps wrote.
  int tile = begin + warp;
  int page = page_of(tile), next_page = page_of(tile + kWarps);
  Keys keys;
  Values values;
  if (tile < end) {
    keys = load_keys(tile_at(page, tile) + keys_at, i, t);
    values = load_values(tile_at(page, tile) + values_at, i, t);
  }
  const float2 angle = rope_angle(norm.turns, run.position, lane);
  const HeadShare q_gamma = load_head(norm.q_norm, lane);
  const int last = run.position % kTile;                                      // of its tile
  const bool appends = end == tiles && (tiles - 1 - begin) % kWarps == warp;  // this warp will come to the new token
  HeadShare k_gamma;
  size_t last_row = 0;
  if (appends) {
    k_gamma = load_head(norm.k_norm, lane);
    last_row = size_t(run.pages[run.position / kPagePositions]) * sizes.page_size +
               size_t(run.position % kPagePositions) * kHeadDim;
  }

  wait_for_previous();
  launch_next();
  HeadShare q[kHeads / kWarps] = {}, key, value;
#pragma unroll
  for (int r = 0; r < kHeads / kWarps; ++r) {
    const int h = warp + kWarps * r;
    if (h < head_count) q[r] = load_head(qg + (size_t(run.row) * sizes.heads + first_head + h) * 2 * kHeadDim, lane);
  }
  if (appends) {
    const size_t at = (size_t(run.row) * sizes.kv_heads + kv_head) * kHeadDim;
    key = load_head(k + at, lane);
    value = load_head(v + at, lane);
  }
#pragma unroll
  for (int r = 0; r < kHeads / kWarps; ++r) {
    norm_rope(q[r], q_gamma, norm.eps, angle);  // zero for heads that are not there
#pragma unroll
    for (int e = 0; e < kHeadDim / kWarp; ++e)
      s.q[warp + kWarps * r][lane + kWarp * e] = __float2bfloat16_rn(q[r].x[e] * (kLog2E / 16));
  }
  if (appends) {
    norm_rope(key, k_gamma, norm.eps, angle);
#pragma unroll
    for (int e = 0; e < kHeadDim / kWarp; ++e) {
      const int d = lane + kWarp * e;
      s.k[d] = __float2bfloat16_rn(key.x[e]);
      s.v[d] = __float2bfloat16_rn(value.x[e]);
      if (eight == 0) {
        pool[last_row + keys_at + d] = s.k[d];
        pool[last_row + values_at + d] = s.v[d];
      }
    }
  }
  __syncthreads();

  Running a;
  while (tile < end) {
    const bool newest = tile == tiles - 1;
    const int next = tile + kWarps;
    if (newest) finish_tile(keys, values, s, last, i, t);
    float score[4];
    score_tile(keys, s, i, t, score);
    if (newest) {
      if (i > last) score[0] = score[1] = -INFINITY;
      if (i + 8 > last) score[2] = score[3] = -INFINITY;
    }
    if (next < end) keys = load_keys(tile_at(next_page, next) + keys_at, i, t);
    add_tile(a, score, values);
    if (next < end) values = load_values(tile_at(next_page, next) + values_at, i, t);
    next_page = page_of(next + kWarps);
    tile = next;
  }

  // The warps' parts become the block's, in the order of the warps. A warp without a tile has maximum −∞ and sum 0.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int offset = 4; offset < kWarp; offset *= 2) a.sum[h] += __shfl_xor_sync(0xffffffff, a.sum[h], offset);
    if (i == 0) {
      s.max[2 * t + h][warp] = a.max[h];
      s.sum[2 * t + h][warp] = a.sum[h];
    }
  }
  __syncthreads();
  const int active = min(kWarps, end - begin);
  const auto top_of = [&](int h) {
    static_assert(kWarps == 4);
    const float4 max = *reinterpret_cast<const float4*>(s.max[h]);
    return fmaxf(fmaxf(max.x, max.y), fmaxf(max.z, max.w));
  };
  if (warp < active) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = exp2_fast(a.max[h] - top_of(2 * t + h));
#pragma unroll
      for (int j = 0; j < kHeadDim / 64; ++j) {
        float4* out = reinterpret_cast<float4*>(&s.o[warp][2 * t + h][64 * j + 8 * i]);
#pragma unroll
        for (int p = 0; p < 4; p += 2)
          out[p / 2] = make_float4(scale * a.o[j][p][h], scale * a.o[j][p][2 + h], scale * a.o[j][p + 1][h],
                                   scale * a.o[j][p + 1][2 + h]);
      }
    }
  }
  const size_t first_part = (size_t(blockIdx.z) * sizes.heads + first_head) * splits + split;
  if (warp == kWarps - 1 && lane < head_count) {
    const float top = top_of(lane);
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += exp2_fast(s.max[lane][w] - top) * s.sum[lane][w];
    parts[first_part + size_t(lane) * splits] = {top, sum};
  }
  __syncthreads();
  static_assert(kHeadDim == 2 * kThreads);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float2 sum{};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 o = reinterpret_cast<const float2*>(s.o[w][h])[threadIdx.x];
      if (w < active) {
        sum.x += o.x;
        sum.y += o.y;
      }
    }
    if (h < head_count)
      reinterpret_cast<float2*>(part_o + (first_part + size_t(h) * splits) * kHeadDim)[threadIdx.x] = sum;
  }
}

// Grid: (slices of dims, heads, runs); a warp has a slice of every so manieth part.
__global__ void __launch_bounds__(kMergeGroups* kWarp)
    merge_parts(const float* qg, const DeviceRun* runs, int heads, int splits, const float* part_o, const Part* parts,
                __half* o) {
  __shared__ float4 sums[kMergeGroups][kWarp];
  const int lane = threadIdx.x, group = threadIdx.y, groups = blockDim.y, head = blockIdx.y;
  const DeviceRun run = runs[blockIdx.z];
  if (run.count != 1) return;
  const int row = run.row, used = used_splits(run.position, splits);
  const int d = blockIdx.x * kMergeDims + 4 * lane;
  parts += (size_t(blockIdx.z) * heads + head) * splits;
  part_o += (size_t(blockIdx.z) * heads + head) * splits * kHeadDim + d;
  const float4 gate = *reinterpret_cast<const float4*>(qg + ((size_t(row) * heads + head) * 2 + 1) * kHeadDim + d);
  wait_for_previous();
  launch_next();
  const auto load_part = [&](int p) { return *reinterpret_cast<const float4*>(part_o + size_t(p) * kHeadDim); };
  int p = group;
  float4 next = p < used ? load_part(p) : float4{};
  Part mine[kMaxSplits / kWarp];
  float top = -INFINITY, total = 0;
#pragma unroll
  for (int j = 0; j < kMaxSplits / kWarp; ++j) {
    const int at = lane + kWarp * j;
    mine[j] = at < used ? parts[at] : Part{-INFINITY, 0};
    top = fmaxf(top, mine[j].max);
  }
  top = warp_max(top);
#pragma unroll
  for (const Part& part : mine) total += exp2_fast(part.max - top) * part.sum;
  total = warp_sum(total);
  float4 sum{};
#pragma unroll 4
  for (; p < used; p += groups) {
    const float weight = exp2_fast(parts[p].max - top);
    sum.x += weight * next.x;
    sum.y += weight * next.y;
    sum.z += weight * next.z;
    sum.w += weight * next.w;
    if (p + groups < used) next = load_part(p + groups);
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group != 0) return;
  for (int other = 1; other < groups; ++other) {
    const float4 more = sums[other][lane];
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
  }
  const float scale = 1 / total;
  const __half2 low =
      __halves2half2(to_half(sum.x * scale * sigmoid(gate.x)), to_half(sum.y * scale * sigmoid(gate.y)));
  const __half2 high =
      __halves2half2(to_half(sum.z * scale * sigmoid(gate.z)), to_half(sum.w * scale * sigmoid(gate.w)));
  *reinterpret_cast<uint2*>(o + (size_t(row) * heads + head) * kHeadDim + d) = make_uint2(bits(low), bits(high));
}

}  // namespace

int attend_step_splits(int run_count, int kv_heads, int max_context, int multiprocessors) {
  const int busy = std::max(1, kResident * multiprocessors / (run_count * kv_heads));
  const int worth = (max_context + kBlockTiles * kTile - 1) / (kBlockTiles * kTile);
  return std::clamp(std::min(busy, worth), 1, kMaxSplits);
}

size_t attend_step_scratch(int run_count, int heads, int splits) {
  return size_t(run_count) * heads * splits * (kHeadDim + sizeof(Part) / sizeof(float));
}

void attend_step(Stream stream, const float* qg, const float* k, const float* v, const QkNorm& norm,
                 const DeviceRun* runs, int run_count, const StateSizes& sizes, int attention_layer, uint16_t* pool,
                 int splits, float* scratch, Half* o) {
  CHECK(splits >= 1 && splits <= kMaxSplits, "attention has too many parts");
  static const bool allowed = (allow_shared(attend_parts, sizeof(Shared)), true);
  static_cast<void>(allowed);
  const int group = sizes.heads / sizes.kv_heads;
  const size_t count = size_t(run_count) * sizes.heads * splits;
  float* part_o = scratch;
  auto* parts = reinterpret_cast<Part*>(scratch + count * kHeadDim);
  launch(attend_parts, dim3(splits, sizes.kv_heads * ((group + kHeads - 1) / kHeads), run_count), dim3(kThreads),
         sizeof(Shared), stream, qg, k, v, norm, runs, sizes, attention_layer, reinterpret_cast<__nv_bfloat16*>(pool),
         part_o, parts);
  launch(merge_parts, dim3(kHeadDim / kMergeDims, sizes.heads, run_count), dim3(kWarp, std::min(splits, kMergeGroups)),
         0, stream, qg, runs, sizes.heads, splits, static_cast<const float*>(part_o), static_cast<const Part*>(parts),
         o);
}

}  // namespace calla::cuda
