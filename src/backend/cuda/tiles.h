#pragma once

// How 4-bit matrices lie in the memory of a GPU: in the order in which one warp's tensor-core fragments want them, so
// that a lane's share of 16 rows and one group of 64 columns is one 16-byte load, and is used from registers. One order
// serves products with one row and with thousands. Reordered once, while uploading; no bytes are added besides rows up
// to a multiple of 16.
//
// Tile (r, g): rows [16r, 16r+16), group g, 512 bytes of codes, lane after lane, 16 bytes each; tiles of a row of tiles
// are consecutive in g. Lane 4·i + t holds rows i and i+8 of the tile, and of the group the columns 16t..16t+15. Its
// word s (0..3) is one step of mma.m16n8k16 with columns 16t+4s+{0,1,2,3}; its nibbles are, lowest first,
//   (i, +0) (i+8, +0) (i, +2) (i+8, +2) (i, +1) (i+8, +1) (i, +3) (i+8, +3),
// so that masks leave pairs of neighbouring columns in the halves of a word. The products' other operand must take its
// columns in the same order: lane (i, t) of step s holds columns 16t+4s+{0,1} in its first register and {2,3} in its
// second.
//
// Scales and biases: per tile 16 words, bf16 scale in the low half and bf16 bias in the high; rows i and i+8 are
// neighbours: word 2i + j belongs to row i + 8j.

#include <cstddef>
#include <cstdint>

#include "ops/linear.h"

namespace calla::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kTileCodeBytes = kTileRows * kGroup / 2;
inline constexpr int kTileScaleWords = kTileRows;

struct TileSizes {
  int row_tiles;
  int groups;
  size_t code_bytes;
  size_t scale_bytes;
};
inline TileSizes tile_sizes(int out, int in) {
  const int row_tiles = (out + kTileRows - 1) / kTileRows, groups = in / kGroup;
  const size_t tiles = size_t(row_tiles) * groups;
  return {row_tiles, groups, tiles * kTileCodeBytes, tiles * kTileScaleWords * sizeof(uint32_t)};
}

}  // namespace calla::cuda
