// The delta rule as a recurrence. A block has 32 value columns of one head's state in registers: columns are
// independent. One sweep over the state gives Sᵀk and Sᵀq of the old state, and then
//   u = beta·(v − alpha·Sᵀk),  S ← alpha·S + k ⊗ u,  o = alpha·Sᵀq + (k·q)·u
// with one reduction. Decode reads and writes each state once, and that is the whole cost.

#include "backend/cuda/delta.cuh"
#include "backend/cuda/launch.cuh"

namespace calla::cuda {
namespace {

constexpr int kColumns = 32;                 // of a block
constexpr int kSlices = kGdnDim / kColumns;  // blocks of a head
constexpr int kThreads = 2 * kGdnDim;        // each has one channel of q or k
constexpr int kWarps = kThreads / kWarp;
constexpr int kQuads = kColumns / 4;  // of columns
constexpr int kRowGroups = kThreads / kQuads;
constexpr int kRows = kGdnDim / kRowGroups;  // of the state, in a thread, each four columns

// A channel of the convolution: four taps and the last three inputs.
struct Channel {
  float4 taps;
  float past[kConvTaps - 1];
  __device__ float next(float input) {
    const float sum = taps.x * past[0] + taps.y * past[1] + taps.z * past[2] + taps.w * input;
    past[0] = past[1];
    past[1] = past[2];
    past[2] = input;
    return silu(sum);
  }
};
__device__ Channel load_channel(const float* conv, const DeviceRun& run, const StateSizes& s, int layer, int c) {
  Channel channel;
  channel.taps = *reinterpret_cast<const float4*>(conv + size_t(c) * kConvTaps);
#pragma unroll
  for (int j = 0; j < kConvTaps - 1; ++j)
    channel.past[j] = *window_of(run, s, layer, run.position - (kConvTaps - 1) + j, c);
  return channel;
}

__device__ __forceinline__ void add_scaled(float4& sum, float x, const float4& y) {
  sum.x += x * y.x;
  sum.y += x * y.y;
  sum.z += x * y.z;
  sum.w += x * y.w;
}
__device__ __forceinline__ void add_shuffled(float4& v, int offset) {
  v.x += __shfl_xor_sync(0xffffffff, v.x, offset);
  v.y += __shfl_xor_sync(0xffffffff, v.y, offset);
  v.z += __shfl_xor_sync(0xffffffff, v.z, offset);
  v.w += __shfl_xor_sync(0xffffffff, v.w, offset);
}

// Grid: (slices, v_heads, runs). kSteps: all runs have one row; else the long ones are left out.
template <bool kSteps>
__global__ void __launch_bounds__(kThreads) scan(const float* qkv, const float* a, const float* b, DeltaWeights w,
                                                 const DeviceRun* runs, StateSizes sizes, int layer, float* o) {
  __shared__ float q[kGdnDim], k[kGdnDim], v[kColumns], squares[kWarps];
  __shared__ float4 sums[2][kWarps][kQuads];  // Sᵀk and Sᵀq, a warp's rows
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const int slice = blockIdx.x, head = blockIdx.y;
  const DeviceRun run = runs[blockIdx.z];
  const int count = kSteps ? 1 : run.count;
  if (count >= kChunkedRows) return;
  const int group = sizes.v_heads / sizes.k_heads, k_head = head / group;
  const int quad = thread % kQuads, first_row = thread / kQuads;

  float* state = state_of(run, sizes, layer, head) + slice * kColumns + 4 * quad;
  float4 S[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) S[r] = *reinterpret_cast<float4*>(state + (first_row + kRowGroups * r) * kGdnDim);
  const int part = thread / kGdnDim, dim = thread % kGdnDim;  // part 0: q, 1: k
  const int c = (part * sizes.k_heads + k_head) * kGdnDim + dim;
  const int v_channel = 2 * sizes.k_heads * kGdnDim + head * kGdnDim + slice * kColumns + lane;
  Channel mine = load_channel(w.conv, run, sizes, layer, c), v_mine{};
  if (warp == 0) v_mine = load_channel(w.conv, run, sizes, layer, v_channel);
  const float A_log = w.A_log[head], dt_bias = w.dt_bias[head];

  wait_for_previous();
  launch_next();
  const float* inputs = qkv + size_t(run.row) * sizes.channels;
  float input = inputs[c], v_input = warp == 0 ? inputs[v_channel] : 0;
  float a_in = a[size_t(run.row) * sizes.v_heads + head], b_in = b[size_t(run.row) * sizes.v_heads + head];
  if (count == 1) {  // the row of the ring that nobody reads now; longer runs: delta_chunk.cu
    if (head % group == 0 && dim / kColumns == slice) *window_of(run, sizes, layer, run.position, c) = input;
    if (warp == 0) *window_of(run, sizes, layer, run.position, v_channel) = v_input;
  }
  for (int i = 0; i < count; ++i) {
    const float y = mine.next(input);
    (part == 0 ? q : k)[dim] = y;
    if (warp == 0) v[lane] = v_mine.next(v_input);
    const float square = warp_sum(y * y);
    if (lane == 0) squares[warp] = square;
    const float alpha = expf(log_decay(a_in, A_log, dt_bias)), beta = sigmoid(b_in);
    if (i + 1 < count) {
      const size_t next = run.row + i + 1;
      input = qkv[next * sizes.channels + c];
      if (warp == 0) v_input = qkv[next * sizes.channels + v_channel];
      a_in = a[next * sizes.v_heads + head];
      b_in = b[next * sizes.v_heads + head];
    }
    __syncthreads();

    static_assert(kWarps == 8);
    const float q_scale = kQueryScale * rsqrtf((squares[0] + squares[1]) + (squares[2] + squares[3]) + kUnitEps);
    const float k_scale = rsqrtf((squares[4] + squares[5]) + (squares[6] + squares[7]) + kUnitEps);
    float k_rows[kRows];
    float4 Sk{}, Sq{};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      k_rows[r] = k[first_row + kRowGroups * r];
      add_scaled(Sk, k_rows[r], S[r]);
      add_scaled(Sq, q[first_row + kRowGroups * r], S[r]);
    }
#pragma unroll
    for (int offset = kQuads; offset < kWarp; offset *= 2) {
      add_shuffled(Sk, offset);
      add_shuffled(Sq, offset);
    }
    if (lane < kQuads) {
      sums[0][warp][lane] = Sk;
      sums[1][warp][lane] = Sq;
    }
    const float4 v4 = reinterpret_cast<const float4*>(v)[quad];
    const float4 k4 = reinterpret_cast<const float4*>(k)[lane], q4 = reinterpret_cast<const float4*>(q)[lane];
    const float kq = warp_sum((k4.x * q4.x + k4.y * q4.y) + (k4.z * q4.z + k4.w * q4.w));
    __syncthreads();

    Sk = sums[0][0][quad];
#pragma unroll
    for (int other = 1; other < kWarps; ++other) add_scaled(Sk, 1, sums[0][other][quad]);
    const float scale = alpha * k_scale;
    const float4 u = {beta * (v4.x - scale * Sk.x), beta * (v4.y - scale * Sk.y), beta * (v4.z - scale * Sk.z),
                      beta * (v4.w - scale * Sk.w)};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      S[r] = make_float4(alpha * S[r].x, alpha * S[r].y, alpha * S[r].z, alpha * S[r].w);
      add_scaled(S[r], k_scale * k_rows[r], u);
    }
    if (thread < kQuads) {
      Sq = sums[1][0][quad];
#pragma unroll
      for (int other = 1; other < kWarps; ++other) add_scaled(Sq, 1, sums[1][other][quad]);
      float4 out{};
      add_scaled(out, alpha * q_scale, Sq);
      add_scaled(out, k_scale * q_scale * kq, u);
      const size_t at = (size_t(run.row) + i) * sizes.v_heads + head;
      reinterpret_cast<float4*>(o + at * kGdnDim + slice * kColumns)[quad] = out;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) *reinterpret_cast<float4*>(state + (first_row + kRowGroups * r) * kGdnDim) = S[r];
}

constexpr int kNormWarps = 8;

// A warp a head.
__global__ void __launch_bounds__(kNormWarps* kWarp)
    norm_gate(const float* o, const float* z, const float* gamma, float eps, int heads, __half* y) {
  const int lane = threadIdx.x % kWarp, head = blockIdx.x * kNormWarps + threadIdx.x / kWarp;
  const float4 g = reinterpret_cast<const float4*>(gamma)[lane];
  wait_for_previous();
  launch_next();
  if (head >= heads) return;
  const size_t at = size_t(head) * (kGdnDim / 4) + lane;
  const float4 x = reinterpret_cast<const float4*>(o)[at], gate = reinterpret_cast<const float4*>(z)[at];
  const float sum = warp_sum((x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w));
  const float scale = rsqrtf(sum * (1.0f / kGdnDim) + eps);
  const __half2 low =
      __halves2half2(to_half(x.x * scale * g.x * silu(gate.x)), to_half(x.y * scale * g.y * silu(gate.y)));
  const __half2 high =
      __halves2half2(to_half(x.z * scale * g.z * silu(gate.z)), to_half(x.w * scale * g.w * silu(gate.w)));
  reinterpret_cast<uint2*>(y)[at] = make_uint2(bits(low), bits(high));
}

template <bool kSteps>
void launch_scan(Stream stream, const float* qkv, const float* a, const float* b, const DeltaWeights& w,
                 const DeviceRun* runs, int run_count, const StateSizes& sizes, int layer, float* o) {
  launch(scan<kSteps>, dim3(kSlices, sizes.v_heads, run_count), dim3(kThreads), 0, stream, qkv, a, b, w, runs, sizes,
         layer, o);
}

}  // namespace

void delta_step(Stream stream, const float* qkv, const float* a, const float* b, const DeltaWeights& w,
                const DeviceRun* runs, int run_count, const StateSizes& sizes, int delta_layer, float* o) {
  launch_scan<true>(stream, qkv, a, b, w, runs, run_count, sizes, delta_layer, o);
}
void delta_short_runs(Stream stream, const float* qkv, const float* a, const float* b, const DeltaWeights& w,
                      const DeviceRun* runs, int run_count, const StateSizes& sizes, int delta_layer, float* o) {
  launch_scan<false>(stream, qkv, a, b, w, runs, run_count, sizes, delta_layer, o);
}

void gated_rmsnorm(Stream stream, const float* o, const float* z, const float* gamma, float eps, int m, int v_heads,
                   Half* y) {
  const int heads = m * v_heads;
  launch(norm_gate, dim3((heads + kNormWarps - 1) / kNormWarps), dim3(kNormWarps * kWarp), 0, stream, o, z, gamma, eps,
         heads, y);
}

}  // namespace calla::cuda
