#pragma once

#include <bit>
#include <cstdint>

namespace calla {

// bfloat16 as stored in checkpoints: the upper half of an IEEE float32.
struct bf16 {
  uint16_t bits = 0;
};
static_assert(sizeof(bf16) == 2);

constexpr float to_f32(bf16 v) {
  return std::bit_cast<float>(uint32_t{v.bits} << 16);
}

// Rounds to nearest, ties to even. NaN stays NaN (quiet, sign kept), infinities stay.
constexpr bf16 to_bf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

}  // namespace calla
