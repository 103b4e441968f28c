#pragma once

#include <cmath>
#include <cstddef>
#include <iterator>

namespace calla::testing {

// Normalised mean squared error: Σ(got − want)² / Σ want²; infinite if anything is not a number.
template <class A, class B>
double nmse(const A& got, const B& want) {
  double error = 0, power = 0;
  for (size_t i = 0; i < std::size(want); ++i) {
    const double d = double(got[i]) - double(want[i]);
    error += d * d;
    power += double(want[i]) * double(want[i]);
  }
  if (!std::isfinite(error)) return INFINITY;
  return power > 0 ? error / power : error;
}

}  // namespace calla::testing
