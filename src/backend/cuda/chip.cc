#include "backend/cuda/chip.h"

#include <cuda_runtime.h>

#include "base/check.h"

namespace calla::cuda {

const Chip& current_chip() {
  static const Chip chip = [] {
    int device = 0, shared = 0, major = 0, multiprocessors = 0;
    CHECK(cudaGetDevice(&device) == cudaSuccess &&
              cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
              cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
              cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) == cudaSuccess,
          "no device is current");
    return Chip{shared, major == 9, multiprocessors};
  }();
  return chip;
}

}  // namespace calla::cuda
