#pragma once

// What the host hands to kernels: views of device memory and descriptions of runs. Included by .cc and .cu files.

#include <cstddef>
#include <cstdint>

#include "ops/dims.h"

struct __half;       // of the toolkit, so that this needs none of its headers
struct CUstream_st;  // cudaStream_t points to it

namespace calla::cuda {

using Half = __half;
using Stream = CUstream_st*;

// A weight matrix on the device, y = W·x. kAffine4: codes and scales as in tiles.h. kAffine8 and kBf16: rows as in the
// checkpoint, 16-byte aligned; scales: per row and group a word, bf16 scale low and bf16 bias high.
struct DeviceLinear {
  enum class Format : uint8_t { kBf16, kAffine4, kAffine8 };
  Format format = Format::kAffine4;
  int out = 0, in = 0;
  const void* weight = nullptr;
  const uint32_t* scales = nullptr;
};

// The experts of a layer: matrices of one shape one after another, so that expert e begins e·stride further. Gate and
// up rows are tiled together: 16 rows of gate, then the same 16 of up, so that one block of either kernel has both.
struct DeviceExperts {
  int experts = 0, width = 0, hidden = 0;
  DeviceLinear gate_up;                          // of expert 0: [2·width, hidden], row tiles alternate gate, up
  DeviceLinear down;                             // of expert 0: [hidden, width]
  size_t gate_up_codes = 0, gate_up_scales = 0;  // bytes from one expert to the next
  size_t down_codes = 0, down_scales = 0;
};

// Rows [row, row+count) of a pass hold positions [position, position+count) of one sequence.
struct DeviceRun {
  int row, count, position, pad;
  const int32_t* pages;  // page numbers of the sequence, in the pool
  float* recurrent;      // [delta layers][v_heads][128 key side][128 value side]
  float* window;         // [delta layers][4][channels]: inputs of the convolution of the last positions; position p
                         // lies in row p mod 4
};

// Sizes of the state, as StateShape.
struct StateSizes {
  int heads, kv_heads, k_heads, v_heads, channels, attention_layers, delta_layers;
  size_t page_size;  // elements of a page: [attention layers][2: keys, values][kv_heads][64][256] bf16
};

}  // namespace calla::cuda
