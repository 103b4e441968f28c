#pragma once

// What happens to rows besides products and mixers. Device pointers; m rows.

#include "backend/cuda/types.h"

namespace calla::cuda {

// Puts a 4-bit matrix into the order of tiles.h. rows: codes as in the checkpoint, [out, in/2] bytes; scales, biases:
// bf16 [out, in/64]. Row tile r of it becomes row tile first + r·step of the result, so that two matrices can
// alternate; rows past `out` are zero.
void tile_matrix(Stream stream, int out, int in, const void* rows, const void* scales, const void* biases, int first,
                 int step, void* tile_codes, uint32_t* tile_scales);
// words[i] = scale i in the low half, bias i in the high one.
void pair_scales(Stream stream, size_t count, const void* scales, const void* biases, uint32_t* words);

// x[i] = row ids[i] of w, whose rows are as in the checkpoint with paired scales (kAffine4). x: [m, w.in].
void embed(Stream stream, const DeviceLinear& w, const int32_t* ids, int m, float* x);
// h = rmsnorm(x) ⊙ gamma, as f32 and as f16. Each [m, width].
void rmsnorm(Stream stream, const float* x, const float* gamma, float eps, int m, int width, float* h, Half* half);
// x += y, n values.
void add(Stream stream, float* x, const float* y, size_t n);
// y[i] = x[rows[i]]
void gather(Stream stream, const float* x, const int32_t* rows, int count, int width, float* y);

}  // namespace calla::cuda
