#pragma once

#include <filesystem>
#include <string>

namespace calla {

// What the processor and the kernel of the machine offer to this process.
struct CpuInfo {
  std::string name;
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, DQ, VL, VBMI and VNNI; GFNI; AVX2
  bool amx = false;     // tiles of int8, and all of avx512; the kernel has been asked for their registers and agreed
  bool neon_dotprod = false;
  bool neon_i8mm = false;  // and neon_dotprod
  int cores = 1;           // usable_cores() when the process asked first
};

const CpuInfo& cpu_info();

// Processors that the calling thread may run on: its affinity and the quota of its control groups (rounded up)
// respected, at least 1.
int usable_cores();

// How many processors' time the control groups of this process allow it, of version 1 (cpu.cfs_quota_us) or 2
// (cpu.max), its own or one above; infinity: no limit. Reads proc/self/cgroup and sys/fs/cgroup below `root`, which is
// "/" except in tests.
double cgroup_cpus(const std::filesystem::path& root);

}  // namespace calla
