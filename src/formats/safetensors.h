#pragma once

// safetensors: u64 little-endian header length, JSON header {name: {dtype, shape, data_offsets}}, then the tensors'
// bytes.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace calla {

enum class Dtype : uint8_t { kBf16, kF16, kF32, kF64, kU8, kI8, kU16, kI16, kU32, kI32, kU64, kI64, kBool };
size_t dtype_bytes(Dtype dtype);
std::string_view dtype_name(Dtype dtype);  // as in the file: "BF16", "U32", …

// A tensor inside a mapped file. `data` may have any alignment.
struct TensorView {
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

using TensorMap = std::map<std::string, TensorView, std::less<>>;

class SafetensorsFile {
 public:
  // Maps the file and checks the whole header: sizes, overlaps, gaps, dtype × shape against the byte range, the end of
  // the file.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  const TensorMap& tensors() const { return tensors_; }
  const MappedFile& file() const { return file_; }

 private:
  MappedFile file_;
  TensorMap tensors_;
};

// Header parsing on its own, for the reader and the fuzzer. `file` is the whole file; views point into it. `name`
// starts every message. A truncated file is kIo ("file short"); everything else that is wrong with it is kInvalid, or
// kUnsupported for a dtype we do not know.
Result<TensorMap> parse_safetensors(std::span<const std::byte> file, std::string_view name);

// Writes small tensor sets in one go (logits, test data); atomic like write_file.
struct TensorData {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};
Result<void> write_safetensors(const std::filesystem::path& path, std::span<const TensorData> tensors);

}  // namespace calla
