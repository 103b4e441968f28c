#pragma once

#include <cmath>
#include <cstdint>

namespace calla {

// SplitMix64: a small generator whose whole state is one number, so a seed gives the same stream everywhere.
// Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Uniform in [0, n), n > 0; the bias is below n/2^64.
  uint64_t below(uint64_t n) { return static_cast<uint64_t>((static_cast<Wide>(next()) * n) >> 64); }
  // Standard normal, by Box and Muller.
  double normal() {
    const double r = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return r * std::cos(6.283185307179586 * uniform());
  }

 private:
  __extension__ using Wide = unsigned __int128;
  uint64_t state_;
};

}  // namespace calla
