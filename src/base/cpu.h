#pragma once

#include <string>

namespace calla {

// What the processor and the kernel of the machine offer to this process.
struct CpuInfo {
  std::string name;
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, DQ, VL, VBMI and VNNI; GFNI; AVX2
  bool amx = false;     // tiles of int8, and all of avx512; the kernel has been asked for their registers and agreed
  bool neon_dotprod = false;
  bool neon_i8mm = false;
  int cores = 1;  // processors this process may run on: affinity and cgroup quota respected, at least 1
};

const CpuInfo& cpu_info();

}  // namespace calla
