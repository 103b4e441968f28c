#pragma once

namespace calla::cuda {

// What kernels choose their route by.
struct Chip {
  int shared_bytes;  // that a block can have: 99 KB on RTX cards, 163 KB and 227 KB on A100 and H200
  bool has_wgmma;    // Hopper
  int multiprocessors;
};
// Of the device that was current when this was first called.
const Chip& current_chip();

}  // namespace calla::cuda
