#include "base/memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace calla {
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

uint64_t cgroup(const char* path) {
  std::ifstream file(path);
  uint64_t bytes = 0;
  return file >> bytes ? bytes : kNoLimit;  // "max" is no number
}

}  // namespace

uint64_t available_memory() {
  const uint64_t limit = cgroup("/sys/fs/cgroup/memory.max");
  uint64_t left = kNoLimit;
  if (limit != kNoLimit) {
    // The page cache counts as current usage but can be reclaimed; what matters is anonymous memory, which `stat` lists
    // as "anon".
    std::ifstream file("/sys/fs/cgroup/memory.stat");
    std::string name;
    uint64_t value = 0, anonymous = 0;
    while (file >> name >> value) {
      if (name == "anon") anonymous = value;
    }
    left = limit > anonymous ? limit - anonymous : 0;
  }
  return std::min(meminfo("MemAvailable"), left);
}

uint64_t total_memory() {
  return std::min(meminfo("MemTotal"), cgroup("/sys/fs/cgroup/memory.max"));
}

ProcessMemory process_memory() {
  constexpr const char* kStatus = "/proc/self/status";
  return {kib_field(kStatus, "RssAnon").value_or(0), kib_field(kStatus, "VmRSS").value_or(0)};
}

}  // namespace calla
