#include "base/memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "base/cgroup.h"

namespace calla {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// The value of a line "key:  123 kB", in bytes.
std::optional<uint64_t> kib_field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string name, rest; file >> name && std::getline(file, rest);) {
    if (name == key + ":") return std::strtoull(rest.c_str(), nullptr, 10) * 1024;
  }
  return std::nullopt;
}

uint64_t meminfo(const std::string& key) {
  return kib_field("/proc/meminfo", key).value_or(kNoLimit);
}

std::optional<uint64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  uint64_t bytes = 0;
  if (file >> bytes) return bytes;  // "max" is no number
  return std::nullopt;
}

uint64_t stat_field(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  uint64_t value = 0;
  for (std::string name; file >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

}  // namespace

GroupMemory cgroup_memory(const fs::path& root) {
  GroupMemory least{kNoLimit, kNoLimit};
  for (const CgroupFolder& group : cgroup_folders(root, "memory")) {
    const auto limit = number_in(group.path / (group.version2 ? "memory.max" : "memory.limit_in_bytes"));
    if (!limit) continue;
    // The page cache counts as usage too but can be reclaimed; what matters is anonymous memory.
    const uint64_t anonymous = stat_field(group.path / "memory.stat", group.version2 ? "anon" : "total_rss");
    least.limit = std::min(least.limit, *limit);
    least.left = std::min(least.left, *limit > anonymous ? *limit - anonymous : 0);
  }
  return least;
}

uint64_t available_memory() {
  return std::min(meminfo("MemAvailable"), cgroup_memory("/").left);
}

uint64_t total_memory() {
  return std::min(meminfo("MemTotal"), cgroup_memory("/").limit);
}

ProcessMemory process_memory() {
  constexpr const char* kStatus = "/proc/self/status";
  return {kib_field(kStatus, "RssAnon").value_or(0), kib_field(kStatus, "VmRSS").value_or(0)};
}

void take_pages([[maybe_unused]] void* block, [[maybe_unused]] size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<size_t>(block);
  const size_t first = (begin + page - 1) / page * page, end = (begin + bytes) / page * page;
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE);
#endif
}

void keep_heap_flat() {
  ::mallopt(M_MMAP_THRESHOLD, 512 << 10);
}

}  // namespace calla
