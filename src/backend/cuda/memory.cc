#include "backend/cuda/memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/progress.h"

namespace calla::cuda {

Error device_error(const char* doing) {
  return {Error::Code::kIo, fmt::format("the GPU failed while {}: {}", doing, cudaGetErrorString(cudaGetLastError()))};
}

std::vector<Device> devices() {
  int count = 0;
  std::vector<Device> found;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver, or no device: the next call shall not see it
    return found;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp prop{};
    size_t free = 0, total = 0;
    if (cudaGetDeviceProperties(&prop, i) != cudaSuccess || prop.major < 8 || cudaSetDevice(i) != cudaSuccess ||
        cudaMemGetInfo(&free, &total) != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    found.push_back({i, prop.name, prop.major, prop.minor, prop.multiProcessorCount, total, free});
  }
  return found;
}

Result<void> use_device(int index) {
  if (cudaSetDevice(index) != cudaSuccess) return tl::unexpected<Error>(device_error("choosing the device"));
  return {};
}

void DeviceMemory::Free::operator()(std::byte* p) const {
  cudaFree(p);
}
void PinnedMemory::Free::operator()(std::byte* p) const {
  cudaFreeHost(p);
}

Result<DeviceMemory> DeviceMemory::allocate(size_t bytes) {
  DeviceMemory memory;
  void* p = nullptr;
  if (cudaMalloc(&p, bytes) != cudaSuccess) {
    cudaGetLastError();
    return fail(Error::Code::kMemory, fmt::format("{} do not fit in the GPU's memory", format_bytes(bytes)));
  }
  memory.data_.reset(static_cast<std::byte*>(p));
  memory.bytes_ = bytes;
  if (cudaMemset(p, 0, bytes) != cudaSuccess) return tl::unexpected<Error>(device_error("clearing memory"));
  return memory;
}

Result<PinnedMemory> PinnedMemory::allocate(size_t bytes) {
  PinnedMemory memory;
  void* p = nullptr;
  if (cudaHostAlloc(&p, bytes, cudaHostAllocDefault) != cudaSuccess) {
    cudaGetLastError();
    return fail(Error::Code::kMemory, fmt::format("{} of memory cannot be pinned for the GPU", format_bytes(bytes)));
  }
  memory.data_.reset(static_cast<std::byte*>(p));
  return memory;
}

}  // namespace calla::cuda
