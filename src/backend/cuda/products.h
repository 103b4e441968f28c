#pragma once

// Products of passes of several rows: prefill, and batches. Device pointers throughout; all matrices of a call have the
// same input and go in one launch.

#include <span>

#include "backend/cuda/types.h"

namespace calla::cuda {

inline constexpr int kMaxProducts = 4;

struct ProductOut {
  DeviceLinear w;
  float* y;  // y[i·y_stride + o] is row i's output o
  int y_stride;
  bool add;  // y += instead of y =
};

// y_j (+)= W_j·x for 1..kMaxProducts matrices in kAffine4. x: [m, in], m ≥ 1. Each weight is rounded to f16 once (and
// so must lie within its range), products are summed in f32.
void products(Stream stream, std::span<const ProductOut> outs, const Half* x, int m);

// The same for kAffine8 and an input in f32, |x| ≤ 65504, for what chooses rather than adds up: codes are exact, x
// keeps 22 bits, sums are f32.
void exact_products(Stream stream, std::span<const ProductOut> outs, const float* x, int m);

}  // namespace calla::cuda
