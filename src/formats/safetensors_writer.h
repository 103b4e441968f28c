#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/safetensors.h"

namespace calla {

// A tensor without its data.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t bytes() const;  // REQUIRES: does not overflow
};

// Length and JSON header for tensors that lie in the given order, padded so that the data starts at a multiple of 64.
std::string safetensors_header(std::span<const TensorSpec> tensors,
                               const std::map<std::string, std::string>& metadata = {});

// Writes a safetensors file of any size in pieces, from any number of threads. The file grows under a temporary name
// beside `path` and takes its own name in commit(), so `path` never holds a part. Move-only; a writer that is dropped
// removes its temporary file.
class SafetensorsWriter {
 public:
  // Creates the temporary file at its full size, so that a disk that is too small is noticed before the work.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                                          const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter() = default;
  SafetensorsWriter(SafetensorsWriter&& o) noexcept { swap(o); }
  SafetensorsWriter& operator=(SafetensorsWriter&& o) noexcept {
    swap(o);
    return *this;
  }
  ~SafetensorsWriter();

  // Bytes [offset, offset + data.size()) of a tensor. Thread-safe. Bytes that nobody writes are zero.
  Result<void> write(size_t tensor, uint64_t offset, std::span<const std::byte> data) const;
  // Syncs the file and gives it its name.
  Result<void> commit();

  const std::vector<TensorSpec>& tensors() const { return tensors_; }

 private:
  void swap(SafetensorsWriter& o) noexcept;
  std::filesystem::path path_, temp_;
  std::vector<TensorSpec> tensors_;
  std::vector<uint64_t> starts_;  // of each tensor, in the file
  int fd_ = -1;
};

}  // namespace calla
