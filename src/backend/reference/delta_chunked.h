#pragma once

#include <span>

#include "base/mat.h"

namespace calla {

// The gated delta rule of one head over one chunk in the form that matrix units want (the WY transform: Yang, Kautz,
// Hatamizadeh, "Gated Delta Networks", 2024; with the decay inside the chunk), in plain f64. It equals the recurrence
// of ReferenceOps::delta_rule, which the tests compare it with; kernels in chunk form are tested against both.
//
// q, k: [n, 128], L2-normalised, q scaled; v: [n, 128]; g: [n] log decays, ≤ 0, may be as low as −∞ in effect; beta:
// [n]. S: [128, 128] key by value side, changed in place; o: [n, 128]. n ≥ 0 of any size; the cost grows with n².
void delta_chunked(Mat<const double> q, Mat<const double> k, Mat<const double> v, std::span<const double> g,
                   std::span<const double> beta, Mat<double> S, Mat<double> o);

}  // namespace calla
