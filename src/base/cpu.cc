#include "base/cpu.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "base/cgroup.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace calla {

namespace fs = std::filesystem;

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Quota over period, both in µs, of two files or of one file with both; no limit where a file is missing or says so
// ("max", -1).
double quota_of(const fs::path& quota_file, const fs::path& period_file) {
  std::ifstream file(quota_file), second(period_file);
  std::string quota;
  double period = 0;
  file >> quota;
  (quota_file == period_file ? file : second) >> period;
  const double time = std::strtod(quota.c_str(), nullptr);
  return time > 0 && period > 0 ? time / period : kNoLimit;
}

std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      const size_t colon = line.find(':');
      if (colon != std::string::npos && colon + 2 < line.size()) return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

#if defined(__x86_64__)
// Linux gives the 8 KiB of tile registers only to a process that asks; its threads inherit the answer.
bool tile_registers_allowed() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

CpuInfo detect() {
  CpuInfo info;
  info.name = model_name();
  info.cores = usable_cores();
#if defined(__x86_64__)
  __builtin_cpu_init();
  info.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  info.avx512 = info.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
                __builtin_cpu_supports("gfni");
  info.amx = info.avx512 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
             tile_registers_allowed();
#elif defined(__aarch64__)
  info.neon_dotprod = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  info.neon_i8mm = info.neon_dotprod && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#endif
  return info;
}

}  // namespace

double cgroup_cpus(const fs::path& root) {
  double cpus = kNoLimit;
  for (const CgroupFolder& group : cgroup_folders(root, "cpu")) {
    cpus = std::min(cpus, group.version2 ? quota_of(group.path / "cpu.max", group.path / "cpu.max")
                                         : quota_of(group.path / "cpu.cfs_quota_us", group.path / "cpu.cfs_period_us"));
  }
  return cpus;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, static_cast<int>(std::ceil(std::min<double>(allowed, cgroup_cpus("/")))));
}

const CpuInfo& cpu_info() {
  static const CpuInfo info = detect();
  return info;
}

}  // namespace calla
