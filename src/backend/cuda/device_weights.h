#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/cuda/memory.h"
#include "backend/cuda/types.h"
#include "base/pool.h"
#include "base/result.h"
#include "model/weights.h"

namespace calla::cuda {

struct DeviceMoe {
  DeviceLinear router, shared_gate;
  DeviceExperts routed, shared;
  int top_k = 0;
};

// The weights in the memory of a GPU, in the order of tiles.h, found by what the page of the model calls them: the
// host's Linear, vector or Moe, which must stay where they are. Still four bits each; nothing is made larger.
class DeviceWeights {
 public:
  // kUnsupported where a matrix is not in the format that the kernels read (4 bits; router and shared gate 8).
  static Result<void> check(const Weights& weights);
  // What upload() allocates on the device.
  static uint64_t bytes(const Weights& weights);
  // Copies all that the model needs, read by all threads of the pool through pinned memory, with a progress line where
  // `report`. Errors: as check(), kMemory, kIo.
  static Result<DeviceWeights> upload(const Weights& weights, Pool& pool, bool report);

  const DeviceLinear& of(const Linear& w) const;
  const float* of(std::span<const float> v) const;
  const DeviceMoe& of(const Moe& w) const;

 private:
  DeviceMemory memory_;
  std::unordered_map<const void*, DeviceLinear> linears_;
  std::unordered_map<const void*, const float*> vectors_;
  std::unordered_map<const void*, DeviceMoe> moes_;
  friend class Layout;
};

}  // namespace calla::cuda
