// Attention of many new tokens on Hopper: as attention.cu, with wgmma, which reads keys and values from shared memory
// once for 64 rows. A block has 128 rows; two warpgroups of four warps compute 64 each, a third one copies pages.
//
// While the tensor cores multiply values by the probabilities of one step and queries by the keys of the next, the
// registers' owners are at the softmax in between. Compiled for 9.0a alone.

#include "backend/cuda/attention_rows.cuh"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/wgmma.cuh"

namespace calla::cuda {
namespace {

constexpr int kGroupRows = 64;  // of a warpgroup
constexpr int kGroups = 2;
constexpr int kGroupThreads = 128;
constexpr int kStages = 2;
constexpr int kStripe = 64;  // dims: 128 bytes, the width of the swizzle
constexpr int kStripes = kHeadDim / kStripe;
constexpr int kStripeBytes = kPagePositions * kStripe * 2;  // 64 rows
constexpr int kTileBytes = kStripes * kStripeBytes;         // 64 rows of 256

struct Shared {
  char q[kGroups][kTileBytes];
  char keys[kStages][kTileBytes], values[kStages][kTileBytes];
  uint64_t full_keys[kStages], full_values[kStages], empty_keys[kStages], empty_values[kStages];
};

// Tiles of 64 rows lie as stripes of 64 dims; a row of a stripe is 128 bytes, its 16-byte chunks are permuted as the
// hardware's 128-byte swizzle does.
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  return chunk / 8 * kStripeBytes + row * 128 + (((chunk ^ row) & 7) << 4);
}

// ---- the kernel

// Copies the pages' keys and values in the order in which they are needed: keys 0, keys 1, values 0, keys 2, values 1,
// …
struct Copier {
  Shared& s;
  const __nv_bfloat16* pool;
  const Context& context;
  const StateSizes& sizes;
  int layer, kv_head, steps, end;

  __device__ void issue(int which, int step) {
    constexpr int kRowsAtOnce = kGroupThreads / kWarp;
    const int thread = threadIdx.x % kGroupThreads, chunk = thread % kWarp, first = thread / kWarp;
    const __nv_bfloat16* from =
        pool + page_offset(sizes, context.pages[step], layer, which, kv_head) + first * kHeadDim + chunk * 8;
    const uint32_t to = shared_address(which == 0 ? s.keys[step % kStages] : s.values[step % kStages]);
    if (step >= kStages) {
      barrier_wait(shared_address(which == 0 ? &s.empty_keys[step % kStages] : &s.empty_values[step % kStages]),
                   (step / kStages - 1) % 2);
    }
#pragma unroll
    for (int r = 0; r < kPagePositions; r += kRowsAtOnce) {
      // What follows the last position is anything, even NaN, which no weight of 0 would remove.
      copy_async(to + chunk_offset(first + r, chunk), from + r * kHeadDim, step * kPagePositions + first + r < end);
    }
    commit_copies();
  }
  __device__ void publish(int which, int step) {
    publish_shared();
    barrier_arrive(shared_address(which == 0 ? &s.full_keys[step % kStages] : &s.full_values[step % kStages]));
  }
  // Copy n of the order above.
  __device__ static int which_of(int n) {
    return n > 0 && n % 2 == 0;
  }
  __device__ static int step_of(int n) {
    return n == 0 ? 0 : n % 2 == 1 ? (n + 1) / 2 : n / 2 - 1;
  }

  __device__ void run_all() {
    constexpr int kAhead = 2;         // copies under way while one is awaited
    const int count = 2 * steps + 1;  // one of them, keys `steps`, does not exist
    for (int n = 0; n < count + kAhead; ++n) {
      if (n < count && step_of(n) < steps) {
        issue(which_of(n), step_of(n));
      } else {
        commit_copies();
      }
      const int done = n - kAhead;
      if (done < 0) continue;
      wait_copies<kAhead>();
      if (step_of(done) < steps) publish(which_of(done), step_of(done));
    }
  }
};

// Grid: (kv_heads · tiles, parts).
template <bool kParts>
__global__ void __launch_bounds__((kGroups + 1) * kGroupThreads, 1)
    attend_rows(const float* qg, const __grid_constant__ QkNorm norm, const DeviceRun* runs, int run_count,
                const __grid_constant__ StateSizes sizes, int layer, const __nv_bfloat16* pool, RowParts parts,
                __half* o) {
  extern __shared__ __align__(1024) char shared_bytes[];
  Shared& s = *reinterpret_cast<Shared*>(shared_bytes);
  constexpr int kRows = kGroups * kGroupRows, kColumnTiles = kPagePositions / 8;
  const int group = sizes.heads / sizes.kv_heads, kv_head = blockIdx.x % sizes.kv_heads;
  wait_for_previous();
  launch_next();
  const Task task = find_task(runs, run_count, group, kRows, blockIdx.x / sizes.kv_heads);
  if (!task.any) return;
  const DeviceRun& run = task.run;
  const int rows = run.count * group;
  const Context context = find_context(task, group, kRows, kParts ? blockIdx.y : 0, kParts ? parts.parts : 1);
  const int steps = (context.limit + kPagePositions - 1) / kPagePositions, position = run.position - context.offset;
  if (kParts && steps == 0) return;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(shared_address(&s.full_keys[stage]), kGroupThreads);
      barrier_init(shared_address(&s.full_values[stage]), kGroupThreads);
      barrier_init(shared_address(&s.empty_keys[stage]), kGroups * kGroupThreads / kWarp);
      barrier_init(shared_address(&s.empty_values[stage]), kGroups * kGroupThreads / kWarp);
    }
  }
  __syncthreads();

  const int warpgroup = threadIdx.x / kGroupThreads;
  if (warpgroup == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    Copier{s, pool, context, sizes, layer, kv_head, steps, position + run.count}.run_all();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kGroupThreads / kWarp, i = lane / 4;
    const int warp_first = task.first + warpgroup * kGroupRows + warp * kWarpRows;
    load_queries(qg, norm, run, sizes, kv_head, warp_first, lane, [&](int r, int d, __nv_bfloat16 x) {
      *reinterpret_cast<__nv_bfloat16*>(s.q[warpgroup] + chunk_offset(warp * kWarpRows + r, d / 8) + d % 8 * 2) = x;
    });
    publish_shared();
    asm volatile("bar.sync %0, %1;" ::"r"(1 + warpgroup), "n"(kGroupThreads) : "memory");

    // Of rows i and i + 8: positions seen, running maximum, this lane's part of the running sum.
    const auto seen_by = [&](int row) { return position + min(row, rows - 1) / group + 1; };
    const int seen[2] = {seen_by(warp_first + i), seen_by(warp_first + i + 8)}, all_see = seen_by(warp_first);
    float top[2] = {kNoMaximum, kNoMaximum}, sum[2] = {0, 0}, keep[2];
    float score[kColumnTiles][4], out[kHeadDim / 8][4] = {};
    uint32_t weights[kPagePositions / 16][4];
    const uint32_t q_tile = shared_address(s.q[warpgroup]);

    const auto multiply_keys = [&](int step) {
      const uint32_t keys = shared_address(s.keys[step % kStages]);
      barrier_wait(shared_address(&s.full_keys[step % kStages]), step / kStages % 2);
      settle(score);
      wgmma_begin();
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        const int at = d / 4 * kStripeBytes + d % 4 * 32;
        wgmma_scores(score, descriptor(q_tile + at, 1024, 16), descriptor(keys + at, 1024, 16), d > 0);
      }
      wgmma_commit();
    };
    const auto multiply_values = [&](int step) {
      const uint32_t values = shared_address(s.values[step % kStages]);
      barrier_wait(shared_address(&s.full_values[step % kStages]), step / kStages % 2);
      settle(out);
      wgmma_begin();
#pragma unroll
      for (int p = 0; p < kPagePositions / 16; ++p)
        wgmma_values(out, weights[p], descriptor(values + p * 16 * 128, 1024, kStripeBytes));
      wgmma_commit();
    };
    const auto release = [&](uint64_t& barrier) {
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&barrier));
    };
    const auto softmax = [&](int step) {
      add_scores(score, step * kPagePositions, all_see, seen, lane, top, sum, keep);
    };
    const auto take_weights = [&] {
#pragma unroll
      for (int p = 0; p < kPagePositions / 16; ++p) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float(&tile)[4] = score[2 * p + e / 2];
          weights[p][e] = pack_bf16(tile[e % 2 * 2], tile[e % 2 * 2 + 1]);
        }
      }
    };

    multiply_keys(0);
    wgmma_wait<0>();
    settle(score);
    release(s.empty_keys[0]);
    softmax(0);
    take_weights();
    for (int step = 1; step < steps; ++step) {
      multiply_keys(step);
      multiply_values(step - 1);
      wgmma_wait<1>();
      settle(score);
      release(s.empty_keys[step % kStages]);
      softmax(step);
      wgmma_wait<0>();
      settle(out);
      release(s.empty_values[(step - 1) % kStages]);
      scale_rows(out, keep);
      take_weights();
    }
    multiply_values(steps - 1);
    wgmma_wait<0>();
    settle(out);
    if constexpr (kParts) {
      store_part(out, top, sum, parts, kRows, warpgroup * kGroupRows + warp * kWarpRows, lane);
    } else {
      store_rows(out, sum, qg, run, sizes, kv_head, warp_first, lane, o);
    }
  }
}

template <bool kParts>
void launch_rows(Stream stream, const float* qg, const QkNorm& norm, const DeviceRun* runs, int run_count, int m,
                 const StateSizes& sizes, int layer, const uint16_t* pool, const RowParts& parts, Half* o) {
  static const bool allowed = (allow_shared(attend_rows<kParts>, sizeof(Shared)), true);
  static_cast<void>(allowed);
  launch(attend_rows<kParts>, dim3(most_tiles(m, run_count, sizes, kGroups * kGroupRows) * sizes.kv_heads, parts.parts),
         dim3((kGroups + 1) * kGroupThreads), sizeof(Shared), stream, qg, norm, runs, run_count, sizes, layer,
         reinterpret_cast<const __nv_bfloat16*>(pool), parts, o);
}

}  // namespace

void attend_rows_sm90(Stream stream, const float* qg, const QkNorm& norm, const DeviceRun* runs, int run_count, int m,
                      const StateSizes& sizes, int attention_layer, const uint16_t* pool, const RowParts& parts,
                      Half* o) {
  const auto launch_it = parts.parts > 1 ? launch_rows<true> : launch_rows<false>;
  launch_it(stream, qg, norm, runs, run_count, m, sizes, attention_layer, pool, parts, o);
}

}  // namespace calla::cuda
