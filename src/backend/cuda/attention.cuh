#pragma once

// What the kernels of attention share.

#include "backend/cuda/attention.h"
#include "backend/cuda/device.cuh"

namespace calla::cuda {

inline constexpr int kPagePositions = 64;
inline constexpr float kLog2E = 1.44269504088896341f;

// Keys (which = 0) or values (1) of a page: [64][256].
__device__ __forceinline__ size_t page_offset(const StateSizes& s, int page, int layer, int which, int kv_head) {
  return size_t(page) * s.page_size + ((size_t(layer) * 2 + which) * s.kv_heads + kv_head) * kPagePositions * kHeadDim;
}

// A warp's share of a head of 256: lane l has elements l + 32·i, so that the pairs that RoPE turns, (j, j + 32), are a
// lane's own.
struct HeadShare {
  float x[kHeadDim / kWarp];
};
__device__ __forceinline__ HeadShare load_head(const float* head, int lane) {
  HeadShare h;
#pragma unroll
  for (int i = 0; i < kHeadDim / kWarp; ++i) h.x[i] = head[lane + kWarp * i];
  return h;
}

// Cosine and sine of this lane's pair.
__device__ __forceinline__ float2 rope_angle(const RopeTurns& turns, int position, int lane) {
  uint64_t mine = 0;  // all lanes read all: parameters are slow to read at 32 different places
#pragma unroll
  for (int j = 0; j < kRotary / 2; ++j) mine = j == lane ? turns.of[j] : mine;
  const auto fraction = static_cast<int32_t>((mine * static_cast<uint64_t>(position)) >> 32);
  float2 v;
  sincospif(static_cast<float>(fraction) * 0x1p-31f, &v.y, &v.x);
  return v;
}

// x ← rope(x · (mean(x²) + eps)^-½ ⊙ gamma)
__device__ __forceinline__ void norm_rope(HeadShare& h, const HeadShare& gamma, float eps, float2 angle) {
  static_assert(kRotary == 2 * kWarp);
  float sum = 0;
#pragma unroll
  for (float x : h.x) sum += x * x;
  const float scale = rsqrtf(warp_sum(sum) * (1.0f / kHeadDim) + eps);
#pragma unroll
  for (int i = 0; i < kHeadDim / kWarp; ++i) h.x[i] *= scale * gamma.x[i];
  const float low = h.x[0], high = h.x[1];
  h.x[0] = low * angle.x - high * angle.y;
  h.x[1] = high * angle.x + low * angle.y;
}

}  // namespace calla::cuda
