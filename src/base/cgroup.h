#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace calla {

// A control group that this process is in, or one above it.
struct CgroupFolder {
  std::filesystem::path path;
  bool version2 = false;
};

// All of them that may limit what `controller` ("cpu", "memory") gives out: those of version 2, and those of version 1
// that have it. A limit holds for all groups below, so the tightest counts. Groups that a container cannot see have no
// files in their folders. Reads proc/self/cgroup below `root`, which is "/" except in tests.
std::vector<CgroupFolder> cgroup_folders(const std::filesystem::path& root, std::string_view controller);

}  // namespace calla
