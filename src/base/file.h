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
// a part, and once this has returned, the new one, whatever happens to the power.
Result<void> write_file(const std::filesystem::path& path, std::string_view content);

// Makes what was created, renamed or removed in a folder last.
Result<void> sync_folder(const std::filesystem::path& folder);

// Tells the kernel that a part of a mapping will be read soon, or that this process is done with it, so that a walk
// through a file larger than memory keeps little of it resident. Hints: they never fail.
void will_need(std::span<const std::byte> mapped);
void done_with(std::span<const std::byte> mapped);

// A file in memory for reading: mapped, nothing is copied, until read_into_memory() takes a copy of a part. Move-only;
// const methods are thread-safe. The address of a byte never changes.
//
// Pages of a mapping come from the page cache, in huge pages where the file system can: the first to read a cold file
// through this class gets them, while pages that were cached before stay as small as they are.
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

  // Makes the pages of a part of bytes() present, from the page cache or, where they are not in it, from the disk. An
  // error: the file has become shorter than the part, or cannot be read.
  Result<void> populate(std::span<const std::byte> part) const;

  // The same bytes in huge anonymous pages, which the system cannot drop: prepare_memory() takes the address range of a
  // part from the mapping, then read_into_memory() fills pieces of it, each on any thread. Until all is filled, nobody
  // may read the part. Errors as of populate().
  Result<void> prepare_memory(std::span<const std::byte> part) const;
  Result<void> read_into_memory(std::span<const std::byte> piece) const;

  // Keeps the pages of a part in memory. An error says which limit is too low.
  Result<void> lock(std::span<const std::byte> part) const;

 private:
  void swap(MappedFile& o) noexcept;
  // The whole pages that a part touches.
  std::span<std::byte> pages(std::span<const std::byte> part) const;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
  std::filesystem::path path_;
};

// From now on, a mapped file that became shorter or cannot be read ends the program with one line on standard error and
// exit code 1 when its bytes are touched, instead of by a signal.
void report_lost_files();

}  // namespace calla
