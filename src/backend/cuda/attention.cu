// Attention of many new tokens: tiles of (token, query head of a KV head) rows against pages of 64 positions, with a
// running softmax in f32. A warp has 16 rows; their outputs stay in its registers.

#include "backend/cuda/attention_rows.cuh"

#include <algorithm>
#include <cmath>

#include "backend/cuda/fragments.cuh"
#include "backend/cuda/launch.cuh"

namespace calla::cuda {
namespace {

constexpr int kChunks = kHeadDim / 8;  // 16 bytes each, of a row

// Keys, values and queries lie in shared memory as rows of 512 bytes; the 16-byte chunks of a row are permuted so that
// the same chunk of eight consecutive rows is in eight different groups of banks.
__device__ __forceinline__ uint32_t chunk_at(uint32_t base, int row, int chunk) {
  return base + row * (kHeadDim * 2) + ((chunk ^ (row & 7)) << 4);
}

template <int kWarps, int kPositions>
struct Shared {
  static constexpr int kRows = kWarps * kWarpRows;
  __nv_bfloat16 q[kRows][kHeadDim];
  __nv_bfloat16 kv[2][2][kPositions][kHeadDim];  // [stage][keys, values]
};

// Grid: (kv_heads · tiles, parts).
template <int kWarps, int kPositions, bool kParts>
__global__ void __launch_bounds__(kWarps* kWarp, 1)
    attend_rows(const float* qg, const __grid_constant__ QkNorm norm, const DeviceRun* runs, int run_count,
                const __grid_constant__ StateSizes sizes, int layer, const __nv_bfloat16* pool, RowParts parts,
                __half* o) {
  using Tiles = Shared<kWarps, kPositions>;
  extern __shared__ __align__(1024) char shared_bytes[];
  Tiles& s = *reinterpret_cast<Tiles*>(shared_bytes);
  constexpr int kThreads = kWarps * kWarp, kColumnTiles = kPositions / 8, kDimTiles = kHeadDim / 8;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4;
  const int group = sizes.heads / sizes.kv_heads, kv_head = blockIdx.x % sizes.kv_heads;
  wait_for_previous();
  launch_next();
  const Task task = find_task(runs, run_count, group, Tiles::kRows, blockIdx.x / sizes.kv_heads);
  if (!task.any) return;
  const DeviceRun& run = task.run;
  const int rows = run.count * group;
  const Context context = find_context(task, group, Tiles::kRows, kParts ? blockIdx.y : 0, kParts ? parts.parts : 1);
  const int steps = (context.limit + kPositions - 1) / kPositions, position = run.position - context.offset;
  if (kParts && steps == 0) return;

  const auto copy_step = [&](int step) {
    constexpr int kPerPage = kPagePositions / kPositions;
    const int page = context.pages[step / kPerPage];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const __nv_bfloat16* from =
          pool + page_offset(sizes, page, layer, which, kv_head) + size_t(step % kPerPage) * kPositions * kHeadDim;
      const uint32_t to = shared_address(s.kv[step % 2][which]);
#pragma unroll
      for (int c = threadIdx.x; c < kPositions * kChunks; c += kThreads) {
        const int row = c / kChunks, chunk = c % kChunks;
        // What follows the last position is anything, even NaN, which no weight of 0 would remove.
        copy_async(chunk_at(to, row, chunk), from + row * kHeadDim + chunk * 8,
                   step * kPositions + row < position + run.count);
      }
    }
    commit_copies();
  };
  copy_step(0);

  const int warp_first = task.first + warp * kWarpRows;
  load_queries(qg, norm, run, sizes, kv_head, warp_first, lane, [&](int r, int d, __nv_bfloat16 x) {
    const int row = warp * kWarpRows + r;
    s.q[row][((d / 8) ^ (row & 7)) * 8 + d % 8] = x;
  });
  __syncwarp();

  const uint32_t q_base = shared_address(s.q[warp * kWarpRows]);
  // Of rows i and i + 8: positions seen, running maximum, this lane's part of the running sum.
  const auto seen_by = [&](int row) { return position + min(row, rows - 1) / group + 1; };
  const int seen[2] = {seen_by(warp_first + i), seen_by(warp_first + i + 8)}, all_see = seen_by(warp_first);
  float top[2] = {kNoMaximum, kNoMaximum}, sum[2] = {0, 0};
  float out[kDimTiles][4] = {};  // [dims 8n + 2t, +1 of rows i and i + 8]

  for (int step = 0; step < steps; ++step) {
    wait_copies<0>();
    __syncthreads();
    if (step + 1 < steps) copy_step(step + 1);
    const uint32_t keys = shared_address(s.kv[step % 2][0]), values = shared_address(s.kv[step % 2][1]);

    float score[kColumnTiles][4] = {};
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
      uint32_t q[4];
      load_matrices(q, chunk_at(q_base, lane % 16, 2 * d + lane / 16));
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2) {
        uint32_t k[4];
        load_matrices(k, chunk_at(keys, 8 * n + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
        mma_bf16(score[n], q, k[0], k[1]);
        mma_bf16(score[n + 1], q, k[2], k[3]);
      }
    }

    float keep[2];
    add_scores(score, step * kPositions, all_see, seen, lane, top, sum, keep);
    scale_rows(out, keep);

#pragma unroll
    for (int p = 0; p < kPositions / 16; ++p) {
      const float(&low)[4] = score[2 * p], (&high)[4] = score[2 * p + 1];
      const uint32_t weights[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]),
                                   pack_bf16(high[2], high[3])};
#pragma unroll
      for (int n = 0; n < kDimTiles; n += 2) {
        uint32_t v[4];
        load_matrices_transposed(v, chunk_at(values, 16 * p + lane % 16, n + lane / 16));
        mma_bf16(out[n], weights, v[0], v[1]);
        mma_bf16(out[n + 1], weights, v[2], v[3]);
      }
    }
  }

  if constexpr (kParts) {
    store_part(out, top, sum, parts, Tiles::kRows, warp * kWarpRows, lane);
  } else {
    store_rows(out, sum, qg, run, sizes, kv_head, warp_first, lane, o);
  }
}

constexpr int kMergeWarps = 8;

// A warp a row. Grid: (kv_heads · tiles, rows of a tile / warps).
__global__ void __launch_bounds__(kMergeWarps* kWarp)
    merge_rows(const float* qg, const DeviceRun* runs, int run_count, StateSizes sizes, int tile_rows, RowParts parts,
               __half* o) {
  const int lane = threadIdx.x % kWarp, tile_row = blockIdx.y * kMergeWarps + threadIdx.x / kWarp;
  const int group = sizes.heads / sizes.kv_heads, kv_head = blockIdx.x % sizes.kv_heads;
  wait_for_previous();
  launch_next();
  const Task task = find_task(runs, run_count, group, tile_rows, blockIdx.x / sizes.kv_heads);
  const int row = task.first + tile_row;
  if (!task.any || row >= task.run.count * group) return;
  const auto is_empty = [&](int part) { return find_context(task, group, tile_rows, part, parts.parts).limit == 0; };
  const auto at = [&](int part) { return (size_t(blockIdx.x) * parts.parts + part) * tile_rows + tile_row; };
  float top = kNoMaximum, total = 0;
  for (int part = 0; part < parts.parts; ++part) {
    if (!is_empty(part)) top = fmaxf(top, parts.max_sum[at(part)].x);
  }
  constexpr int kPerLane = kHeadDim / kWarp;
  float sum[kPerLane] = {};
#pragma unroll 2
  for (int part = 0; part < parts.parts; ++part) {
    if (is_empty(part)) continue;
    const float2 max_sum = parts.max_sum[at(part)];
    const float weight = exp2_fast(max_sum.x - top);
    total += weight * max_sum.y;
    const float* from = parts.o + at(part) * kHeadDim + lane;
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) sum[e] += weight * from[kWarp * e];
  }
  const float scale = 1 / total;
  const size_t head = size_t(task.run.row + row / group) * sizes.heads + kv_head * group + row % group;
  const float* gate = qg + (head * 2 + 1) * kHeadDim + lane;
#pragma unroll
  for (int e = 0; e < kPerLane; ++e)
    o[head * kHeadDim + lane + kWarp * e] = to_half(sum[e] * scale * sigmoid(gate[kWarp * e]));
}

constexpr int kAppendWarps = 8;

// A warp a row and KV head.
__global__ void __launch_bounds__(kAppendWarps* kWarp)
    append_kv(const float* k, const float* v, const __grid_constant__ QkNorm norm, const DeviceRun* runs, int run_count,
              const __grid_constant__ StateSizes sizes, int layer, __nv_bfloat16* pool) {
  const int lane = threadIdx.x % kWarp, index = blockIdx.x * kAppendWarps + threadIdx.x / kWarp;
  const int kv_head = index % sizes.kv_heads;
  int token = index / sizes.kv_heads, r = 0;  // of all runs of several rows
  const HeadShare gamma = load_head(norm.k_norm, lane);
  wait_for_previous();
  launch_next();
  const auto rows_of = [&](int at) { return runs[at].count == 1 ? 0 : runs[at].count; };
  while (r < run_count && token >= rows_of(r)) token -= rows_of(r++);
  if (r == run_count) return;
  const DeviceRun run = runs[r];
  const int position = run.position + token;
  const size_t from = (size_t(run.row + token) * sizes.kv_heads + kv_head) * kHeadDim;
  HeadShare key = load_head(k + from, lane);
  const HeadShare value = load_head(v + from, lane);
  norm_rope(key, gamma, norm.eps, rope_angle(norm.turns, position, lane));
  const int page = run.pages[position / kPagePositions];
  const size_t row = size_t(position % kPagePositions) * kHeadDim;
  __nv_bfloat16* keys = pool + page_offset(sizes, page, layer, 0, kv_head) + row;
  __nv_bfloat16* values = pool + page_offset(sizes, page, layer, 1, kv_head) + row;
#pragma unroll
  for (int e = 0; e < kHeadDim / kWarp; ++e) {
    keys[lane + kWarp * e] = __float2bfloat16_rn(key.x[e]);
    values[lane + kWarp * e] = __float2bfloat16_rn(value.x[e]);
  }
}

template <int kWarps, int kPositions, bool kParts>
void launch_rows(Stream stream, const float* qg, const QkNorm& norm, const DeviceRun* runs, int run_count, int m,
                 const StateSizes& sizes, int layer, const uint16_t* pool, const RowParts& parts, Half* o) {
  using Tiles = Shared<kWarps, kPositions>;
  const auto kernel = attend_rows<kWarps, kPositions, kParts>;
  static const bool allowed = (allow_shared(kernel, sizeof(Tiles)), true);
  static_cast<void>(allowed);
  launch(kernel, dim3(most_tiles(m, run_count, sizes, Tiles::kRows) * sizes.kv_heads, parts.parts),
         dim3(kWarps * kWarp), sizeof(Tiles), stream, qg, norm, runs, run_count, sizes, layer,
         reinterpret_cast<const __nv_bfloat16*>(pool), parts, o);
}
template <int kWarps, int kPositions>
void attend_rows_mma(Stream stream, const float* qg, const QkNorm& norm, const DeviceRun* runs, int run_count, int m,
                     const StateSizes& sizes, int layer, const uint16_t* pool, const RowParts& parts, Half* o) {
  const auto launch_it =
      parts.parts > 1 ? launch_rows<kWarps, kPositions, true> : launch_rows<kWarps, kPositions, false>;
  launch_it(stream, qg, norm, runs, run_count, m, sizes, layer, pool, parts, o);
}

// Which kernel: tiles of 128 rows and whole pages where there is room for them, of 64 rows and half pages elsewhere.
using LargeTiles = Shared<8, 64>;
using SmallTiles = Shared<4, 32>;
int rows_of_tiles(const Chip& chip) {
  const bool large = chip.has_wgmma || chip.shared_bytes >= static_cast<int>(sizeof(LargeTiles));
  return large ? LargeTiles::kRows : SmallTiles::kRows;
}
// Few tiles before a long past leave multiprocessors idle, unless the past is cut.
int row_parts(int m, int run_count, const StateSizes& sizes, int max_context, const Chip& chip) {
  constexpr int kPagesWorthAPart = 8;
  const int blocks = most_tiles(m, run_count, sizes, rows_of_tiles(chip)) * sizes.kv_heads;
  return std::clamp(chip.multiprocessors / blocks, 1, std::max(1, max_context / (kPagesWorthAPart * kPagePositions)));
}

}  // namespace

RopeTurns rope_turns(double theta) {
  RopeTurns turns;
  for (int j = 0; j < kRotary / 2; ++j) {
    const double turn = std::pow(theta, -2.0 * j / kRotary) / (2 * M_PI);  // below 1/6
    turns.of[j] = static_cast<uint64_t>(turn * 0x1p64);
  }
  return turns;
}

size_t attend_pass_scratch(int run_count, const StateSizes& sizes, int multiprocessors) {
  size_t most = size_t(multiprocessors) * LargeTiles::kRows * (kHeadDim + 2);  // a block each, at most
  constexpr int kAnyContext = 1 << 30;
  for (int runs = 1; runs <= run_count; ++runs) {  // few runs are cut into more parts than many
    const int splits = attend_step_splits(runs, sizes.kv_heads, kAnyContext, multiprocessors);
    most = std::max(most, attend_step_scratch(runs, sizes.heads, splits));
  }
  return most;
}

void attend_pass(Stream stream, const float* qg, const float* k, const float* v, const QkNorm& norm,
                 const DeviceRun* runs, int run_count, int m, const StateSizes& sizes, int attention_layer,
                 uint16_t* pool, Half* o, int max_context, float* scratch, const Chip& chip) {
  const int splits = attend_step_splits(run_count, sizes.kv_heads, max_context, chip.multiprocessors);
  attend_step(stream, qg, k, v, norm, runs, run_count, sizes, attention_layer, pool, splits, scratch, o);
  launch(append_kv, dim3((m * sizes.kv_heads + kAppendWarps - 1) / kAppendWarps), dim3(kAppendWarps * kWarp), 0, stream,
         k, v, norm, runs, run_count, sizes, attention_layer, reinterpret_cast<__nv_bfloat16*>(pool));

  const int tile_rows = rows_of_tiles(chip), blocks = most_tiles(m, run_count, sizes, tile_rows) * sizes.kv_heads;
  RowParts parts{row_parts(m, run_count, sizes, max_context, chip), scratch, nullptr};
  parts.max_sum = reinterpret_cast<float2*>(scratch + size_t(blocks) * parts.parts * tile_rows * kHeadDim);
  const auto attend = chip.has_wgmma                   ? attend_rows_sm90
                      : tile_rows == LargeTiles::kRows ? attend_rows_mma<8, 64>
                                                       : attend_rows_mma<4, 32>;
  attend(stream, qg, norm, runs, run_count, m, sizes, attention_layer, pool, parts, o);
  if (parts.parts > 1)
    launch(merge_rows, dim3(blocks, tile_rows / kMergeWarps), dim3(kMergeWarps * kWarp), 0, stream, qg, runs, run_count,
           sizes, tile_rows, parts, o);
}

}  // namespace calla::cuda
