#pragma once

// MLX affine quantisation, the form of the checkpoint: each row of a matrix is cut into groups of 64 values; w =
// scale·code + bias with an unsigned code of 4 or 8 bits. Codes are packed into little-endian 32-bit words, lowest bits
// first; scale and bias are bf16.

#include <cstdint>
#include <span>

#include "base/bf16.h"

namespace calla {

inline constexpr int kGroup = 64;

// One quantised group.
struct AffineGroup {
  bf16 scale;
  bf16 bias;
  uint8_t codes[kGroup];  // 0..15 or 0..255
};

// MLX's own rule, to the bit, as its Metal kernel computes it (affine_quantize in
// mlx/backend/metal/kernels/quantized.h): the edge of larger magnitude becomes a code exactly, halves are rounded away
// from zero, and scale and bias are rounded to bf16 only after the codes are chosen. MLX on a CPU differs in two
// details: it rounds halves to even, and it does not stretch a group of negative values up to zero. w: 64 finite
// values; bits: 4 or 8.
AffineGroup quantize_group(std::span<const float, kGroup> w, int bits);

// Searches scale and bias for a lower squared error at the same size; never worse than quantize_group.
AffineGroup search_group(std::span<const float, kGroup> w, int bits);

// codes → packed words (bits·64/32 of them) and back.
void pack_codes(std::span<const uint8_t, kGroup> codes, int bits, uint32_t* words);
void unpack_codes(const uint32_t* words, int bits, std::span<uint8_t, kGroup> codes);

}  // namespace calla
