#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/random.h"

namespace calla {

// A 64-bit checksum against accidents, not against people: any change inside one aligned word of eight bytes is found
// for certain (each step is one-to-one in the word), any other but for one case in 2^64. Four words at a time, as fast
// as memory.
class Checksum {
 public:
  // Adds bytes. REQUIRES: all pieces but the last have a multiple of 32 bytes.
  void add(std::span<const std::byte> data) {
    length_ += data.size();
    size_t i = 0;
    for (; i + 32 <= data.size(); i += 32) block(data.data() + i);
    if (i == data.size()) return;
    std::byte rest[32] = {};
    std::memcpy(rest, data.data() + i, data.size() - i);
    block(rest);
  }
  uint64_t value() const {
    uint64_t h = length_;
    for (const uint64_t lane : lanes_) h = Random(h ^ lane).next();
    return h;
  }

 private:
  void block(const std::byte* p) {
    for (int i = 0; i < 4; ++i) {
      uint64_t word;
      std::memcpy(&word, p + 8 * i, 8);
      // Odd factors are one-to-one. The second spreads a difference in the highest bit, which the first leaves one bit.
      lanes_[i] = std::rotl(lanes_[i] + word * 0x9e3779b97f4a7c15u, 31) * 0xbf58476d1ce4e5b9u;
    }
  }
  uint64_t lanes_[4] = {1, 2, 3, 4};
  uint64_t length_ = 0;
};

}  // namespace calla
