#include "base/cgroup.h"

#include <fstream>
#include <string>

namespace calla {

namespace fs = std::filesystem;

std::vector<CgroupFolder> cgroup_folders(const fs::path& root, std::string_view controller) {
  std::vector<CgroupFolder> folders;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "id:controllers:/group"; version 2 names no controllers
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = ',' + line.substr(first + 1, second - first - 1) + ',';
    const bool version2 = names == ",,";
    if (!version2 && names.find(',' + std::string(controller) + ',') == std::string::npos) continue;
    const fs::path mount = version2 ? root / "sys/fs/cgroup" : root / "sys/fs/cgroup" / controller;
    for (fs::path at = fs::path(line.substr(second + 1)).relative_path();; at = at.parent_path()) {
      folders.push_back({mount / at, version2});
      if (at.empty()) break;
    }
  }
  return folders;
}

}  // namespace calla
