// The delta rule over chunks of 64 tokens, on tensor cores (the WY transform: backend/reference/delta_chunked.h). With
// G the sum of log decays inside a chunk and e^(G_i − G_j) for j ≤ i the decay from token j to i:
//   T = (I + A)^-1, A_ij = beta_i (k_i·k_j) e^(G_i − G_j) for j < i,     U = T·(beta·V),  W = T·(beta·e^G·K)
//   V' = U − W·S,   O = e^G·Q·S + P·V', P_ij = (q_i·k_j) e^(G_i − G_j),   S ← e^G_last·S + Kᵀ·(e^(G_last − G)·V')
// `prepare` makes U, W, P of all chunks at once, not by T itself but by elimination in blocks of 16; `walk` carries S
// through the chunks of a run, 32 value columns a block, S in registers.
//
// Precision. Operands are f16, sums f32, and U and S stay f32. The rows of W are products of contractions with vectors
// of length one, so nothing grows, and errors do not add up with the length of a run: against f64 they are 8·10^-4 of
// the outputs' rms for heads that hardly forget, 4·10^-4 for others.

#include <algorithm>

#include "backend/cuda/delta.cuh"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/launch.cuh"

namespace calla::cuda {
namespace {

constexpr int kChunk = 64;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr float kLog2E = 1.44269504088896341f;

// What one kernel hands to the next lies as it will in shared memory: rows of 16-byte chunks, permuted so that a chunk
// of eight consecutive rows is in eight different groups of banks.
using Tile = __half[kChunk][kGdnDim];
constexpr int kColumns = 32;  // of the value side, of a block of walk
constexpr int kSlices = kGdnDim / kColumns;
// For each (chunk, value head). The convolved q and k (of length one) and v are a Tile for each (chunk, head of 128).
struct HeadChunk {
  Tile W;
  __half P[kChunk][kChunk];  // blocks of 16 above the diagonal are not written
  float U[kSlices][kChunk][kColumns];
  float G[kChunk];  // in powers of two
};

// Where a chunk of a row is.
template <int kRowBytes>
__device__ __forceinline__ uint32_t chunk_at(uint32_t base, int row, int chunk) {
  static_assert(kRowBytes % 128 == 0);
  return base + row * kRowBytes + ((chunk ^ (row & 7)) << 4);
}
constexpr int kRowBytes = kGdnDim * 2;
constexpr int kPBytes = kChunk * 2;
constexpr int kUBytes = kColumns * 4;

// Saturating.
__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  const __half2 top = as_half2(0x7bff7bff), bottom = as_half2(0xfbfffbff);
  return bits(__hmax2(__hmin2(__floats2half2_rn(low, high), top), bottom));
}
__device__ __forceinline__ int chunks_of(const DeviceRun& run) {
  return run.count < kChunkedRows ? 0 : (run.count + kChunk - 1) / kChunk;
}

__device__ __forceinline__ float silu_fast(float x) {
  return __fdividef(x, 1 + __expf(-x));
}

// The run and its chunk that are number `chunk` of the pass; false: there are fewer.
__device__ __forceinline__ bool find_chunk(const DeviceRun* runs, int run_count, int& chunk, DeviceRun& run) {
  for (int r = 0; r < run_count; ++r) {
    const int count = chunks_of(runs[r]);
    if (chunk < count) {
      run = runs[r];
      return true;
    }
    chunk -= count;
  }
  return false;
}

// ---- the convolution

// A head of 128 channels of a chunk; a warp has eight rows, a lane four channels. Grid: (heads of q, k and v, chunks).
__global__ void __launch_bounds__(kThreads) convolve(const float* qkv, const float* conv, const DeviceRun* runs,
                                                     int run_count, StateSizes sizes, int layer, Tile* tiles) {
  constexpr int kRows = kChunk / kWarps, kPast = kConvTaps - 1;
  const int lane = threadIdx.x % kWarp, head = blockIdx.x, c = head * kGdnDim + 4 * lane;
  float4 taps[4], x[kRows + kPast];
#pragma unroll
  for (int e = 0; e < 4; ++e) taps[e] = reinterpret_cast<const float4*>(conv)[c + e];
  wait_for_previous();
  launch_next();
  int chunk = blockIdx.y;
  DeviceRun run;
  if (!find_chunk(runs, run_count, chunk, run)) return;
  const int tile_row = threadIdx.x / kWarp * kRows, first = chunk * kChunk + tile_row;
#pragma unroll
  for (int i = 0; i < kRows + kPast; ++i) {
    const int row = first + i - kPast;
    const float* from = row < 0 ? window_of(run, sizes, layer, run.position + row, c)
                                : qkv + size_t(run.row + row) * sizes.channels + c;
    x[i] = row < run.count ? *reinterpret_cast<const float4*>(from) : float4{};
  }
  const bool unit = head < 2 * sizes.k_heads;
  const auto one = [](const float4& w, float past3, float past2, float past1, float now) {
    return silu_fast(w.x * past3 + w.y * past2 + w.z * past1 + w.w * now);
  };
  __half* out = tiles[size_t(blockIdx.y) * gridDim.x + head][tile_row];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float4 y = {one(taps[0], x[i].x, x[i + 1].x, x[i + 2].x, x[i + 3].x),
                one(taps[1], x[i].y, x[i + 1].y, x[i + 2].y, x[i + 3].y),
                one(taps[2], x[i].z, x[i + 1].z, x[i + 2].z, x[i + 3].z),
                one(taps[3], x[i].w, x[i + 1].w, x[i + 2].w, x[i + 3].w)};
    if (first + i >= run.count) y = float4{};  // a token that is not there changes nothing
    const float scale = unit ? rsqrtf(warp_sum((y.x * y.x + y.y * y.y) + (y.z * y.z + y.w * y.w)) + kUnitEps) : 1;
    *reinterpret_cast<uint2*>(out + i * kGdnDim + ((lane / 2) ^ i) * 8 + lane % 2 * 4) =
        make_uint2(pack_half(y.x * scale, y.y * scale), pack_half(y.z * scale, y.w * scale));
  }
}

// ---- prepare

// Whole tiles, by `threads` threads.
template <int kBytes>
__device__ __forceinline__ void copy_tile(void* to, const void* from, int thread, int threads) {
  const uint32_t base = shared_address(to);
#pragma unroll 8
  for (int at = thread * 16; at < kBytes; at += threads * 16)
    copy_async(base + at, static_cast<const char*>(from) + at);
}

constexpr int kBlock = 16;  // rows that are eliminated one after another; blocks are tensor-core tiles
constexpr int kBlocks = kChunk / kBlock;
constexpr int kAStride = kChunk + 8, kTStride = kBlock + 8;  // f32: the rows of a fragment fall in other banks

struct PrepareShared {
  Tile q, k, v;
  float A[kChunk][kAStride];
  float T[kChunk][kTStride];  // (I + A)^-1 of the blocks on the diagonal
  float G[kChunk], beta[kChunk];
};

// A 16×16 block of f32, times `sign`, as the rows' operand.
__device__ __forceinline__ void load_block(uint32_t (&v)[4], const float* block, int stride, float sign, int i, int t) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float2 x = *reinterpret_cast<const float2*>(block + (i + e % 2 * 8) * stride + 2 * t + e / 2 * 8);
    v[e] = pack_half(sign * x.x, sign * x.y);
  }
}
// 16 rows of eight columns as the columns' operand.
__device__ __forceinline__ void as_columns(uint32_t (&v)[2], const float (&x)[4]) {
  v[0] = transposed(pack_half(x[0], x[1]));
  v[1] = transposed(pack_half(x[2], x[3]));
}

// Grid: (v_heads, chunks).
__global__ void __launch_bounds__(kThreads, 3)
    prepare(const float* a, const float* b, DeltaWeights w, const DeviceRun* runs, int run_count, StateSizes sizes,
            const Tile* tiles, HeadChunk* head_chunks) {
  extern __shared__ __align__(1024) char shared_bytes[];
  PrepareShared& s = *reinterpret_cast<PrepareShared*>(shared_bytes);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, t = lane % 4;
  const int head = blockIdx.x, k_head = head / (sizes.v_heads / sizes.k_heads);
  wait_for_previous();
  launch_next();
  int chunk = blockIdx.y;
  DeviceRun run;
  if (!find_chunk(runs, run_count, chunk, run)) return;
  HeadChunk& out = head_chunks[size_t(blockIdx.y) * sizes.v_heads + head];
  tiles += size_t(blockIdx.y) * (2 * sizes.k_heads + sizes.v_heads);
  copy_tile<sizeof(Tile)>(s.k, tiles[sizes.k_heads + k_head], threadIdx.x, kThreads);
  copy_tile<sizeof(Tile)>(s.q, tiles[k_head], threadIdx.x, kThreads);
  copy_tile<sizeof(Tile)>(s.v, tiles[2 * sizes.k_heads + head], threadIdx.x, kThreads);
  commit_copies();
  if (warp == 0) {
    const int first = chunk * kChunk;
    float g[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = 2 * lane + e;
      const bool valid = first + row < run.count;
      const size_t at = size_t(run.row + first + row) * sizes.v_heads + head;
      // A decay of 2^-64 is none; a smaller one would cost the sums G their precision.
      g[e] = valid ? fmaxf(kLog2E * log_decay(a[at], w.A_log[head], w.dt_bias[head]), -64.0f) : 0;
      s.beta[row] = valid ? sigmoid(b[at]) : 0;
    }
    float total = g[0] + g[1];
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const float before = __shfl_up_sync(0xffffffff, total, offset);
      if (lane >= offset) total += before;
    }
    float before = __shfl_up_sync(0xffffffff, total, 1);
    if (lane == 0) before = 0;
    s.G[2 * lane] = out.G[2 * lane] = before + g[0];
    s.G[2 * lane + 1] = out.G[2 * lane + 1] = total;
  }
  wait_copies<0>();
  __syncthreads();

  const uint32_t q_tile = shared_address(s.q), k_tile = shared_address(s.k);
  const int row_block = warp % 4, half = warp / 4;  // of 16 rows, of the columns
  if (32 * half < kBlock * (row_block + 1)) {
    float kk[4][4] = {}, qk[4][4] = {};
#pragma unroll
    for (int d = 0; d < kGdnDim / 16; ++d) {
      uint32_t q[4], k[4];
      load_matrices(q, chunk_at<kRowBytes>(q_tile, kBlock * row_block + lane % 16, 2 * d + lane / 16));
      load_matrices(k, chunk_at<kRowBytes>(k_tile, kBlock * row_block + lane % 16, 2 * d + lane / 16));
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        uint32_t other[4];
        load_matrices(other,
                      chunk_at<kRowBytes>(k_tile, 32 * half + 8 * n + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
        mma(kk[n], k, other[0], other[1]);
        mma(kk[n + 1], k, other[2], other[3]);
        mma(qk[n], q, other[0], other[1]);
        mma(qk[n + 1], q, other[2], other[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int column = 32 * half + 8 * n + 2 * t;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = kBlock * row_block + i + 8 * e;
        float p[2], A[2];
#pragma unroll
        for (int f = 0; f < 2; ++f) {
          // Raised only where it is a decay: otherwise it could overflow.
          const float decay = column + f <= row ? exp2_fast(s.G[row] - s.G[column + f]) : 0;
          p[f] = decay * qk[n][2 * e + f];
          A[f] = column + f < row ? s.beta[row] * decay * kk[n][2 * e + f] : 0;
        }
        *reinterpret_cast<uint32_t*>(&out.P[row][((column / 8) ^ (row & 7)) * 8 + 2 * t]) = pack_half(p[0], p[1]);
        *reinterpret_cast<float2*>(&s.A[row][column]) = make_float2(A[0], A[1]);
      }
    }
  }
  __syncthreads();
  if (warp < kBlocks / 2) {  // a lane has a column of one of two blocks
    const int block = 2 * warp + lane / kBlock, column = lane % kBlock;
    const float* A = &s.A[block * kBlock][block * kBlock];
    float T[kBlock];
#pragma unroll
    for (int j = 0; j < kBlock; ++j) T[j] = j == column ? 1 : 0;
#pragma unroll
    for (int j = 0; j < kBlock; ++j) {
#pragma unroll
      for (int l = j + 1; l < kBlock; ++l) T[l] -= A[l * kAStride + j] * T[j];
    }
#pragma unroll
    for (int j = 0; j < kBlock; ++j) s.T[block * kBlock + j][column] = T[j];
  }
  __syncthreads();

  // (I + A)·X = diag(beta)·V or diag(beta·e^G)·K, block after block: a warp has 32 columns.
  const bool makes_U = warp < 4;
  const int columns = warp % 4 * 32;
  uint32_t X[kBlocks - 1][4][2];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const int rows[2] = {kBlock * block + i, kBlock * block + i + 8};
    float x[4][4];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = rows[e];
      const float factor = s.beta[row] * (makes_U ? 1 : exp2_fast(s.G[row]));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 v = __half22float2(*reinterpret_cast<const __half2*>(
            &(makes_U ? s.v : s.k)[row][((columns / 8 + n) ^ (row & 7)) * 8 + 2 * t]));
        x[n][2 * e] = factor * v.x;
        x[n][2 * e + 1] = factor * v.y;
      }
    }
#pragma unroll
    for (int before = 0; before < block; ++before) {
      uint32_t A[4];
      load_block(A, &s.A[kBlock * block][kBlock * before], kAStride, -1, i, t);
#pragma unroll
      for (int n = 0; n < 4; ++n) mma(x[n], A, X[before][n][0], X[before][n][1]);
    }
    uint32_t T[4];
    load_block(T, s.T[kBlock * block], kTStride, 1, i, t);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t right[2];
      as_columns(right, x[n]);
#pragma unroll
      for (float& y : x[n]) y = 0;
      mma(x[n], T, right[0], right[1]);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (block + 1 < kBlocks) as_columns(X[block][n], x[n]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (makes_U) {
          const int chunk_of = (2 * n + t / 2) ^ (rows[e] & 7);
          *reinterpret_cast<float2*>(&out.U[warp][rows[e]][chunk_of * 4 + t % 2 * 2]) =
              make_float2(x[n][2 * e], x[n][2 * e + 1]);
        } else {
          *reinterpret_cast<uint32_t*>(&out.W[rows[e]][((columns / 8 + n) ^ (rows[e] & 7)) * 8 + 2 * t]) =
              pack_half(x[n][2 * e], x[n][2 * e + 1]);
        }
      }
    }
  }
}

// ---- walk

// Four warps carry S from chunk to chunk, four others make the outputs, at most one chunk behind. So what follows from
// chunk to chunk is W·S, V' and the update of S only.
constexpr int kTeamWarps = kWarps / 2;
constexpr int kTeam = kTeamWarps * kWarp;
constexpr int kStateRows = kGdnDim / kTeamWarps;  // of a warp

using Slice = __half[kColumns];  // a row of the block's columns
struct StateStage {
  Tile W, k;
  float U[kChunk][kColumns];
  float G[kChunk];
};
struct OutputStage {
  Tile q;
  __half P[kChunk][kChunk];
  float G[kChunk];
};
template <int kStages>
struct WalkShared {
  StateStage state[kStages];
  OutputStage output[kStages];
  Slice S[2][kGdnDim];    // before even chunks, before odd ones
  Slice V[2][kChunk];     // V' of even chunks, of odd ones
  Slice decayed[kChunk];  // e^(G_last − G)·V'
};

// Barriers between the teams: one for each of two chunks, so that none is entered twice before all have left it.
enum Barrier { kStateTeam = 1, kOutputTeam, kReady, kDone = kReady + 2 };
__device__ __forceinline__ void sync_team(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kTeam) : "memory");
}
__device__ __forceinline__ void await_other_team(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
__device__ __forceinline__ void tell_other_team(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// By the threads of a team.
template <class T>
__device__ __forceinline__ void copy_whole(T& to, const T& from) {
  copy_tile<sizeof(T)>(&to, &from, threadIdx.x % kTeam, kTeam);
}

// Rows of 64 bytes: eight consecutive ones have the same chunk in eight different groups of banks.
__device__ __forceinline__ int slice_at(int row, int column) {
  return row * kColumns + ((column / 8 ^ row / 2) & 3) * 8 + column % 8;
}
// Two 8-column tiles of an operand [k][columns] at rows 16·step.. and columns 8·n..
__device__ __forceinline__ void load_slice(uint32_t (&v)[4], const Slice* slice, int step, int n, int lane) {
  load_matrices_transposed(v, shared_address(slice[0] + slice_at(16 * step + lane % 16, 8 * n + lane / 16 * 8)));
}
// Rows `row` and `row` + 8 of an accumulator of eight columns.
__device__ __forceinline__ void store_slice(Slice* slice, int row, int column, const float (&v)[4]) {
  *reinterpret_cast<uint32_t*>(slice[0] + slice_at(row, column)) = pack_half(v[0], v[1]);
  *reinterpret_cast<uint32_t*>(slice[0] + slice_at(row + 8, column)) = pack_half(v[2], v[3]);
}
// 16 rows of W·S or of Q·S.
__device__ __forceinline__ void multiply_state(float (&product)[4][4], uint32_t rows_tile, const Slice* S, int row,
                                               int lane) {
#pragma unroll
  for (int d = 0; d < kGdnDim / 16; ++d) {
    uint32_t rows[4];
    load_matrices(rows, chunk_at<kRowBytes>(rows_tile, row + lane % 16, 2 * d + lane / 16));
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      uint32_t v[4];
      load_slice(v, S, d, n, lane);
      mma(product[n], rows, v[0], v[1]);
      mma(product[n + 1], rows, v[2], v[3]);
    }
  }
}

template <int kStages>
__device__ __forceinline__ void carry_state(WalkShared<kStages>& s, const HeadChunk* heads, size_t head_stride,
                                            const Tile* keys, size_t key_stride, int chunks, int slice, float* state) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, t = lane % 4;
  const auto copy = [&](int c) {
    if (c < chunks) {
      StateStage& to = s.state[c % kStages];
      const HeadChunk& from = heads[c * head_stride];
      copy_whole(to.W, from.W);
      copy_whole(to.U, from.U[slice]);
      copy_whole(to.G, from.G);
      copy_whole(to.k, keys[c * key_stride]);
    }
    commit_copies();
  };
#pragma unroll
  for (int c = 0; c < kStages - 1; ++c) copy(c);

  // S: tiles m of rows kStateRows·warp + 16m + i (+8) of the key side, columns 8n + 2t (+1).
  constexpr int kTiles = kStateRows / 16;
  state += (kStateRows * warp + i) * kGdnDim + slice * kColumns + 2 * t;
  float S[kTiles][4][4];
  const auto publish = [&](int c) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) store_slice(s.S[c % 2], kStateRows * warp + 16 * m + i, 8 * n + 2 * t, S[m][n]);
    }
  };
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float* from = state + 16 * m * kGdnDim + 8 * n;
      const float2 low = *reinterpret_cast<const float2*>(from),
                   high = *reinterpret_cast<const float2*>(from + 8 * kGdnDim);
      S[m][n][0] = low.x, S[m][n][1] = low.y, S[m][n][2] = high.x, S[m][n][3] = high.y;
    }
  }
  publish(0);

  for (int c = 0; c < chunks; ++c) {
    if (kStages == 1) {
      sync_team(kStateTeam);  // the chunk before is no longer read
      copy(c);
    }
    wait_copies<kStages == 1 ? 0 : kStages - 2>();
    sync_team(kStateTeam);
    if (kStages > 1) copy(c + kStages - 1);
    const StateStage& stage = s.state[c % kStages];
    const float last = stage.G[kChunk - 1];

    float v[4][4] = {};
    multiply_state(v, shared_address(stage.W), s.S[c % 2], 16 * warp, lane);
    float decay[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) decay[e] = exp2_fast(last - stage.G[16 * warp + i + 8 * e]);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float decayed[4];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float2 U =
            *reinterpret_cast<const float2*>(reinterpret_cast<const char*>(stage.U) +
                                             chunk_at<kUBytes>(0, 16 * warp + i + 8 * e, 2 * n + t / 2) + t % 2 * 8);
        v[n][2 * e] = U.x - v[n][2 * e];
        v[n][2 * e + 1] = U.y - v[n][2 * e + 1];
        decayed[2 * e] = decay[e] * v[n][2 * e];
        decayed[2 * e + 1] = decay[e] * v[n][2 * e + 1];
      }
      store_slice(s.V[c % 2], 16 * warp + i, 8 * n + 2 * t, v[n]);
      store_slice(s.decayed, 16 * warp + i, 8 * n + 2 * t, decayed);
    }
    sync_team(kStateTeam);
    tell_other_team(kReady + c % 2);

    const float keep = exp2_fast(last);
#pragma unroll
    for (auto& rows : S) {
#pragma unroll
      for (auto& tile : rows) {
#pragma unroll
        for (float& x : tile) x *= keep;
      }
    }
#pragma unroll
    for (int step = 0; step < kChunk / 16; ++step) {
      uint32_t k[kTiles][4];  // Kᵀ: 16 dims of the key side × 16 tokens
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        load_matrices_transposed(k[m],
                                 chunk_at<kRowBytes>(shared_address(stage.k), 16 * step + lane % 8 + lane / 16 * 8,
                                                     kStateRows / 8 * warp + 2 * m + lane / 8 % 2));
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        uint32_t b[4];
        load_slice(b, s.decayed, step, n, lane);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          mma(S[m][n], k[m], b[0], b[1]);
          mma(S[m][n + 1], k[m], b[2], b[3]);
        }
      }
    }
    if (c > 0) await_other_team(kDone + (c - 1) % 2);  // S of the chunk before is no longer read
    publish(c + 1);
  }
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float* to = state + 16 * m * kGdnDim + 8 * n;
      *reinterpret_cast<float2*>(to) = make_float2(S[m][n][0], S[m][n][1]);
      *reinterpret_cast<float2*>(to + 8 * kGdnDim) = make_float2(S[m][n][2], S[m][n][3]);
    }
  }
}

// o: row 0 of the run, this head and slice.
template <int kStages>
__device__ __forceinline__ void make_outputs(WalkShared<kStages>& s, const HeadChunk* heads, size_t head_stride,
                                             const Tile* queries, size_t query_stride, int chunks, int count, float* o,
                                             size_t o_stride) {
  const int lane = threadIdx.x % kWarp, row_block = threadIdx.x / kWarp - kTeamWarps, i = lane / 4, t = lane % 4;
  const auto copy = [&](int c) {
    if (c < chunks) {
      OutputStage& to = s.output[c % kStages];
      copy_whole(to.q, queries[c * query_stride]);
      copy_whole(to.P, heads[c * head_stride].P);
      copy_whole(to.G, heads[c * head_stride].G);
    }
    commit_copies();
  };
#pragma unroll
  for (int c = 0; c < kStages - 1; ++c) copy(c);
  for (int c = 0; c < chunks; ++c) {
    if (kStages == 1) {
      sync_team(kOutputTeam);
      copy(c);
    }
    wait_copies<kStages == 1 ? 0 : kStages - 2>();
    await_other_team(kReady + c % 2);
    if (kStages > 1) copy(c + kStages - 1);
    const OutputStage& stage = s.output[c % kStages];
    float out[4][4] = {};
    multiply_state(out, shared_address(stage.q), s.S[c % 2], 16 * row_block, lane);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float decay = exp2_fast(stage.G[16 * row_block + i + 8 * e]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        out[n][2 * e] *= decay;
        out[n][2 * e + 1] *= decay;
      }
    }
    for (int step = 0; step <= row_block; ++step) {
      uint32_t p[4];
      load_matrices(p, chunk_at<kPBytes>(shared_address(stage.P), 16 * row_block + lane % 16, 2 * step + lane / 16));
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        uint32_t v[4];
        load_slice(v, s.V[c % 2], step, n, lane);
        mma(out[n], p, v[0], v[1]);
        mma(out[n + 1], p, v[2], v[3]);
      }
    }
    tell_other_team(kDone + c % 2);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = c * kChunk + 16 * row_block + i + 8 * e;
      if (row >= count) continue;
#pragma unroll
      for (int n = 0; n < 4; ++n)
        *reinterpret_cast<float2*>(o + row * o_stride + 8 * n + 2 * t) =
            make_float2(kQueryScale * out[n][2 * e], kQueryScale * out[n][2 * e + 1]);
    }
  }
}

// Grid: (slices, v_heads, runs).
template <int kStages>
__global__ void __launch_bounds__(kThreads, 1) walk(const DeviceRun* runs, StateSizes sizes, int layer,
                                                    const HeadChunk* head_chunks, const Tile* tiles, float* o) {
  extern __shared__ __align__(1024) char shared_bytes[];
  WalkShared<kStages>& s = *reinterpret_cast<WalkShared<kStages>*>(shared_bytes);
  const int slice = blockIdx.x, head = blockIdx.y, k_head = head / (sizes.v_heads / sizes.k_heads);
  wait_for_previous();
  launch_next();
  size_t first_chunk = 0;
  for (int r = 0; r < blockIdx.z; ++r) first_chunk += chunks_of(runs[r]);
  const DeviceRun run = runs[blockIdx.z];
  const int chunks = chunks_of(run);
  if (chunks == 0) return;
  const HeadChunk* heads = head_chunks + first_chunk * sizes.v_heads + head;
  const size_t tile_stride = 2 * sizes.k_heads + sizes.v_heads;
  tiles += first_chunk * tile_stride + k_head;
  if (threadIdx.x < kTeam) {
    carry_state(s, heads, sizes.v_heads, tiles + sizes.k_heads, tile_stride, chunks, slice,
                state_of(run, sizes, layer, head));
  } else {
    make_outputs(s, heads, sizes.v_heads, tiles, tile_stride, chunks, run.count,
                 o + (size_t(run.row) * sizes.v_heads + head) * kGdnDim + slice * kColumns,
                 size_t(sizes.v_heads) * kGdnDim);
  }
}

// ---- the window

// The last inputs of runs of several rows; scan keeps those of one. Grid: (channels / threads, runs).
__global__ void append_window(const float* qkv, const DeviceRun* runs, StateSizes sizes, int layer) {
  wait_for_previous();
  launch_next();
  const DeviceRun run = runs[blockIdx.y];
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (run.count == 1 || c >= sizes.channels) return;
  for (int i = max(0, run.count - kConvTaps); i < run.count; ++i)
    *window_of(run, sizes, layer, run.position + i, c) = qkv[(size_t(run.row) + i) * sizes.channels + c];
}

void launch_append(Stream stream, const float* qkv, const DeviceRun* runs, int run_count, const StateSizes& sizes,
                   int layer) {
  launch(append_window, dim3((sizes.channels + kThreads - 1) / kThreads, run_count), dim3(kThreads), 0, stream, qkv,
         runs, sizes, layer);
}

// Runs of kChunkedRows rows and more have a chunk for each 64 rows begun.
int most_chunks(int m, int run_count) {
  return m / kChunk + std::min(run_count, m / kChunkedRows);
}

template <int kStages>
void launch_walk(Stream stream, const DeviceRun* runs, int run_count, const StateSizes& sizes, int layer,
                 const HeadChunk* head_chunks, const Tile* tiles, float* o) {
  static const bool allowed = (allow_shared(walk<kStages>, sizeof(WalkShared<kStages>)), true);
  static_cast<void>(allowed);
  launch(walk<kStages>, dim3(kSlices, sizes.v_heads, run_count), dim3(kThreads), sizeof(WalkShared<kStages>), stream,
         runs, sizes, layer, head_chunks, tiles, o);
}

}  // namespace

size_t delta_pass_scratch(int m, int run_count, const StateSizes& sizes) {
  const size_t chunk = sizes.v_heads * sizeof(HeadChunk) + (2 * sizes.k_heads + sizes.v_heads) * sizeof(Tile);
  return most_chunks(m, run_count) * chunk / sizeof(float);
}

void delta_pass(Stream stream, const float* qkv, const float* a, const float* b, const DeltaWeights& w,
                const DeviceRun* runs, int run_count, int m, const StateSizes& sizes, int delta_layer, float* scratch,
                float* o, const Chip& chip) {
  static const bool allowed = (allow_shared(prepare, sizeof(PrepareShared)), true);
  static_cast<void>(allowed);
  const int chunks = most_chunks(m, run_count), heads = 2 * sizes.k_heads + sizes.v_heads;
  auto* head_chunks = reinterpret_cast<HeadChunk*>(scratch);
  auto* tiles = reinterpret_cast<Tile*>(head_chunks + size_t(chunks) * sizes.v_heads);
  delta_short_runs(stream, qkv, a, b, w, runs, run_count, sizes, delta_layer, o);
  if (chunks == 0) {
    launch_append(stream, qkv, runs, run_count, sizes, delta_layer);
    return;
  }
  launch(convolve, dim3(heads, chunks), dim3(kThreads), 0, stream, qkv, w.conv, runs, run_count, sizes, delta_layer,
         tiles);
  launch(prepare, dim3(sizes.v_heads, chunks), dim3(kThreads), sizeof(PrepareShared), stream, a, b, w, runs, run_count,
         sizes, tiles, head_chunks);
  if (chip.shared_bytes >= static_cast<int>(sizeof(WalkShared<3>))) {
    launch_walk<3>(stream, runs, run_count, sizes, delta_layer, head_chunks, tiles, o);
  } else {
    launch_walk<1>(stream, runs, run_count, sizes, delta_layer, head_chunks, tiles, o);
  }
  launch_append(stream, qkv, runs, run_count, sizes, delta_layer);
}

}  // namespace calla::cuda
