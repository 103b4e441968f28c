#pragma once

// The gated delta net between its projections: convolution, delta rule, gated norm. The equations are those of
// ops/ops.h (conv_silu, delta_rule, gated_rmsnorm). The convolution is part of the rule's kernels, so that its outputs
// never go to memory: qkv: [m, (2·k_heads + v_heads)·128] are raw projections and are not changed.
//
// All pointers are to device memory; a multiple of 16 bytes each. Nothing here allocates or waits; results are the same
// bits every time.

#include <cstddef>
#include <cstdint>

#include "backend/cuda/chip.h"
#include "backend/cuda/types.h"

namespace calla::cuda {

struct DeltaWeights {
  const float* conv;     // [channels, 4], the last tap for the current input
  const float* A_log;    // [v_heads]
  const float* dt_bias;  // [v_heads]
};

// Decode: convolution and delta rule, token by token in f32, for runs of one row each. a, b: [m, v_heads] raw; o: [m,
// v_heads·128]. State and window of `delta_layer` of each run are brought up to date.
//
// The state is read before the kernel ahead in the stream has ended: between two calls for one layer lies at least one
// other kernel.
void delta_step(Stream stream, const float* qkv, const float* a, const float* b, const DeltaWeights& w,
                const DeviceRun* runs, int run_count, const StateSizes& sizes, int delta_layer, float* o);

// Runs of any number of rows: those of less than kChunkedRows as above, longer ones in chunks of 64 rows on tensor
// cores, where outputs err by up to 1e-3 of their rms. m: rows of the pass.
void delta_pass(Stream stream, const float* qkv, const float* a, const float* b, const DeltaWeights& w,
                const DeviceRun* runs, int run_count, int m, const StateSizes& sizes, int delta_layer, float* scratch,
                float* o, const Chip& chip = current_chip());
inline constexpr int kChunkedRows = 16;
// Floats of scratch that delta_pass needs.
size_t delta_pass_scratch(int m, int run_count, const StateSizes& sizes);

// y = rmsnorm(o) ⊙ gamma ⊙ silu(z) per head of 128, f16; o, z, y: [m, v_heads·128]; gamma: [128].
void gated_rmsnorm(Stream stream, const float* o, const float* z, const float* gamma, float eps, int m, int v_heads,
                   Half* y);

}  // namespace calla::cuda
