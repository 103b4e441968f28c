#pragma once

// Memory of a GPU and of the host for it, owned. The device is the one that is current on the calling thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/types.h"
#include "base/result.h"

namespace calla::cuda {

// What the driver says of its last error, for a message.
Error device_error(const char* doing);

struct Device {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  uint64_t memory = 0, free = 0;  // bytes
};
// The GPUs that the kernels can run on; none where there is no driver.
std::vector<Device> devices();
// Makes a device current on this thread.
Result<void> use_device(int index);

// Zeroed device memory of `bytes`. kMemory where it does not fit.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  static Result<DeviceMemory> allocate(size_t bytes);
  std::byte* data() const { return data_.get(); }
  template <class T>
  T* as(size_t offset = 0) const {
    return reinterpret_cast<T*>(data_.get() + offset);
  }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

// Host memory that the GPU copies from and to without the processor.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  static Result<PinnedMemory> allocate(size_t bytes);
  std::byte* data() const { return data_.get(); }
  template <class T>
  T* as(size_t offset = 0) const {
    return reinterpret_cast<T*>(data_.get() + offset);
  }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
};

// Cuts one allocation into pieces: the first pass, without memory, adds up; the second gives them out.
class Arena {
 public:
  explicit Arena(std::byte* base = nullptr) : base_(base) {}
  template <class T>
  T* take(size_t count) {
    const size_t at = used_;
    used_ = (used_ + count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  size_t used() const { return used_; }

 private:
  static constexpr size_t kAlign = 256;
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace calla::cuda
