#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace calla {

// The whole file. Refuses anything that is not a regular file, or larger than `limit` bytes.
Result<std::string> read_file(const std::filesystem::path& path, uint64_t limit = uint64_t{1} << 31);

// Writes through a temporary file in the same folder, syncs, renames: the path holds the old content or the new, never
// a part.
Result<void> write_file(const std::filesystem::path& path, std::string_view content);

// Tells the kernel that a part of a mapping will be read soon, or that this process is done with it, so that a walk
// through a file larger than memory keeps little of it resident. Hints: they never fail.
void will_need(std::span<const std::byte> mapped);
void done_with(std::span<const std::byte> mapped);

// A file mapped for reading. Move-only. The mapping is shared with the page cache; nothing is copied.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile() = default;
  MappedFile(MappedFile&& o) noexcept { swap(o); }
  MappedFile& operator=(MappedFile&& o) noexcept {
    swap(o);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Tells the kernel that [offset, offset+size) will be read soon. Does nothing where unsupported.
  void will_need(uint64_t offset, uint64_t size) const;

 private:
  void swap(MappedFile& o) noexcept;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::filesystem::path path_;
};

}  // namespace calla
