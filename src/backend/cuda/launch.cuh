#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/types.h"
#include "base/check.h"

namespace calla::cuda {

// kernel<<<grid, block, shared, stream>>>(args...), allowed to start before the kernel ahead of it has ended:
// wait_for_previous() in device.cuh is where the kernel then waits. A launch fails only for a bug of ours.
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, Stream stream, A... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
  if (error != cudaSuccess) check_failed(__FILE__, __LINE__, cudaGetErrorString(error), "a kernel cannot be launched");
}

// More than 48 KB of shared memory a block has to be asked for, once a kernel.
template <class... P>
void allow_shared(void (*kernel)(P...), size_t bytes) {
  CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)) == cudaSuccess,
      "a kernel asks for more shared memory than a block can have");
}

}  // namespace calla::cuda
