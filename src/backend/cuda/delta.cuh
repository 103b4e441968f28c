#pragma once

// What the kernels of the delta net share.

#include "backend/cuda/delta.h"
#include "backend/cuda/device.cuh"

namespace calla::cuda {

inline constexpr float kUnitEps = kGdnDim * 1e-6f;          // on Σx²: docs/numerics.md
inline constexpr float kQueryScale = 0.08838834764831845f;  // 128^-½

__device__ __forceinline__ float* state_of(const DeviceRun& run, const StateSizes& s, int layer, int head) {
  return run.recurrent + (size_t(layer) * s.v_heads + head) * kGdnDim * kGdnDim;
}
// The input of channel `c` at a position at most four before the next one.
__device__ __forceinline__ float* window_of(const DeviceRun& run, const StateSizes& s, int layer, int position, int c) {
  return run.window + (size_t(layer) * kConvTaps + (position & (kConvTaps - 1))) * s.channels + c;
}

// log alpha
__device__ __forceinline__ float log_decay(float a, float A_log, float dt_bias) {
  const float t = a + dt_bias;
  return -expf(A_log) * (t > 20 ? t : log1pf(expf(t)));
}

// As delta_step, for the runs of less than kChunkedRows rows of a pass; but of those with more than one the window is
// not brought up to date.
void delta_short_runs(Stream stream, const float* qkv, const float* a, const float* b, const DeltaWeights& w,
                      const DeviceRun* runs, int run_count, const StateSizes& sizes, int delta_layer, float* o);

}  // namespace calla::cuda
