#pragma once

// What the kernels share that attend with many rows. Rows are (token, query head of a KV head) pairs; a warp has 16,
// and accumulators lie as those of mma.m16n8: lane (i, t) has rows i, i, i + 8, i + 8, columns 2t, 2t + 1 of eight
// each.

#include "backend/cuda/attention.cuh"
#include "backend/cuda/device.cuh"

namespace calla::cuda {

inline constexpr int kWarpRows = 16;

// Which rows a block has: rows [first, first + rows of a tile) of a run.
struct Task {
  DeviceRun run;
  int first;
  bool any;
};
// Tiles are counted run after run, the last of a run, which has most to do, first. Runs of one row have none.
__device__ inline Task find_task(const DeviceRun* runs, int run_count, int group, int rows, int index) {
  for (int r = 0; r < run_count; ++r) {
    const int tiles = runs[r].count == 1 ? 0 : (runs[r].count * group + rows - 1) / rows;
    if (index < tiles) return {runs[r], (tiles - 1 - index) * rows, true};
    index -= tiles;
  }
  return {{}, 0, false};
}
// What a block of a tile attends to: all that the tile's last row sees, or one of several parts of it. Parts are whole
// pages; an empty one has no steps.
struct Context {
  const int32_t* pages;  // from the first on
  int offset;            // its position
  int limit;             // positions from there on
};
__device__ inline Context find_context(const Task& task, int group, int rows, int part, int parts) {
  const DeviceRun& run = task.run;
  const int limit = run.position + (min(task.first + rows, run.count * group) - 1) / group + 1;
  const int pages = (limit + kPagePositions - 1) / kPagePositions;
  const int first = static_cast<int>(int64_t{pages} * part / parts),
            end = static_cast<int>(int64_t{pages} * (part + 1) / parts);
  return {run.pages + first, first * kPagePositions, min(limit, end * kPagePositions) - first * kPagePositions};
}
inline constexpr float kNoMaximum = -1e30f;  // of a row that sees nothing; finite, so that differences are numbers

// Scores of one tile of columns of rows i and i + 8 become weights, 2^(score − maximum): those of positions from
// seen[row] on are nothing. all_see: no row of the warp sees less. top, sum: running maximum and this lane's part of
// the running sum; keep: what earlier sums, and outputs, are multiplied by.
template <int kColumnTiles>
__device__ __forceinline__ void add_scores(float (&score)[kColumnTiles][4], int first_position, int all_see,
                                           const int (&seen)[2], int lane, float (&top)[2], float (&sum)[2],
                                           float (&keep)[2]) {
  const int t = lane % 4;
  if (first_position + 8 * kColumnTiles > all_see) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (first_position + 8 * n + 2 * t + e % 2 >= seen[e / 2]) score[n][e] = -INFINITY;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float high = top[h];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) high = fmaxf(high, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
    high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
    high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
    keep[h] = exp2_fast(top[h] - high);
    top[h] = high;
    float added = 0;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) {
        score[n][e] = exp2_fast(score[n][e] - high);
        added += score[n][e];
      }
    }
    sum[h] = sum[h] * keep[h] + added;
  }
}
// What was summed up before.
template <int kTiles>
__device__ __forceinline__ void scale_rows(float (&out)[kTiles][4], const float (&keep)[2]) {
#pragma unroll
  for (auto& tile : out) {
#pragma unroll
    for (int e = 0; e < 4; ++e) tile[e] *= keep[e / 2];
  }
}

// Not less than there are tiles in a pass of m rows.
inline int most_tiles(int m, int run_count, const StateSizes& sizes, int rows) {
  return m * (sizes.heads / sizes.kv_heads) / rows + run_count;
}

// The 16 queries from row `first` of the run on, normalised, turned and scaled: store(row of the 16, dim, value).
template <class Store>
__device__ __forceinline__ void load_queries(const float* qg, const QkNorm& norm, const DeviceRun& run,
                                             const StateSizes& sizes, int kv_head, int first, int lane, Store store) {
  constexpr int kBatch = 8;  // heads whose loads overlap
  const int group = sizes.heads / sizes.kv_heads, rows = run.count * group;
  const HeadShare gamma = load_head(norm.q_norm, lane);
  float2 angle{};
  int angle_token = -1;
  for (int batch = 0; batch < kWarpRows; batch += kBatch) {
    HeadShare q[kBatch];
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
      const int row = min(first + batch + r, rows - 1);
      const size_t head = size_t(run.row + row / group) * sizes.heads + kv_head * group + row % group;
      q[r] = load_head(qg + head * 2 * kHeadDim, lane);
    }
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
      const int token = min(first + batch + r, rows - 1) / group;
      if (token != angle_token) angle = rope_angle(norm.turns, run.position + token, lane);
      angle_token = token;
      norm_rope(q[r], gamma, norm.eps, angle);
#pragma unroll
      for (int e = 0; e < kHeadDim / kWarp; ++e)
        store(batch + r, lane + kWarp * e, __float2bfloat16_rn(q[r].x[e] * (kLog2E / 16)));
    }
  }
}

// o = out / sum ⊙ σ(gate) of those of the 16 rows that exist; sum: this lane's part of the sum of rows i and i + 8.
__device__ __forceinline__ void store_rows(const float (&out)[kHeadDim / 8][4], const float (&sum)[2], const float* qg,
                                           const DeviceRun& run, const StateSizes& sizes, int kv_head, int first,
                                           int lane, __half* o) {
  const int group = sizes.heads / sizes.kv_heads, i = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = sum[h] + __shfl_xor_sync(0xffffffff, sum[h], 1);
    total += __shfl_xor_sync(0xffffffff, total, 2);
    const float scale = 1 / total;
    const int row = first + i + 8 * h;
    if (row >= run.count * group) continue;
    const size_t head = size_t(run.row + row / group) * sizes.heads + kv_head * group + row % group;
    const float* gate = qg + (head * 2 + 1) * kHeadDim + 2 * t;
    __half* to = o + head * kHeadDim + 2 * t;
    constexpr int kBatch = 8;  // loads that overlap: they cannot pass the stores
#pragma unroll
    for (int batch = 0; batch < kHeadDim / 8; batch += kBatch) {
      float2 gates[kBatch];
#pragma unroll
      for (int n = 0; n < kBatch; ++n) gates[n] = *reinterpret_cast<const float2*>(gate + 8 * (batch + n));
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const float(&x)[4] = out[batch + n];
        *reinterpret_cast<__half2*>(to + 8 * (batch + n)) = __halves2half2(
            to_half(x[2 * h] * scale * sigmoid(gates[n].x)), to_half(x[2 * h + 1] * scale * sigmoid(gates[n].y)));
      }
    }
  }
}

// Results of parts of contexts: `parts` for each block of rows, each of `rows` rows.
struct RowParts {
  int parts;
  float* o;         // [blocks][parts][rows][256], not divided by the sum
  float2* max_sum;  // [blocks][parts][rows]
};
__device__ __forceinline__ void store_part(const float (&out)[kHeadDim / 8][4], const float (&top)[2],
                                           const float (&sum)[2], const RowParts& to, int rows, int first, int lane) {
  const int i = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = sum[h] + __shfl_xor_sync(0xffffffff, sum[h], 1);
    total += __shfl_xor_sync(0xffffffff, total, 2);
    const size_t row = (size_t(blockIdx.x) * to.parts + blockIdx.y) * rows + first + i + 8 * h;
    if (t == 0) to.max_sum[row] = make_float2(top[h], total);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n)
      *reinterpret_cast<float2*>(to.o + row * kHeadDim + 8 * n + 2 * t) = make_float2(out[n][2 * h], out[n][2 * h + 1]);
  }
}

// The kernel for Hopper (attention_sm90.cu), which no other GPU can run. With one part, `parts` has no memory.
void attend_rows_sm90(Stream stream, const float* qg, const QkNorm& norm, const DeviceRun* runs, int run_count, int m,
                      const StateSizes& sizes, int attention_layer, const uint16_t* pool, const RowParts& parts,
                      Half* o);

}  // namespace calla::cuda
