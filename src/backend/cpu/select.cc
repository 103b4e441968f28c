#include "backend/cpu/select.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/cpu.h"

namespace calla {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"amx", "avx512", "avx2", "neon-i8mm", "neon", "scalar"};

std::vector<const KernelTable*> detect() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  if (cpu_info().amx) {
    static KernelTable amx = kAvx2Kernels;
    use_avx512_kernels(&amx);
    use_amx_kernels(&amx);
    tables.push_back(&amx);
  }
  if (cpu_info().avx512) {
    static KernelTable avx512 = kAvx2Kernels;
    use_avx512_kernels(&avx512);
    tables.push_back(&avx512);
  }
  if (cpu_info().avx2) tables.push_back(&kAvx2Kernels);
#elif defined(__aarch64__)
  if (cpu_info().neon_i8mm) {
    static KernelTable i8mm = kNeonKernels;
    use_neon_i8mm_kernels(&i8mm);
    tables.push_back(&i8mm);
  }
  if (cpu_info().neon_dotprod) tables.push_back(&kNeonKernels);
#endif
  tables.push_back(&kScalarKernels);
  return tables;
}

}  // namespace

std::span<const KernelTable* const> available_tables() {
  static const std::vector<const KernelTable*> tables = detect();
  return tables;
}

Result<const KernelTable*> select_table(std::string_view isa) {
  const auto tables = available_tables();
  if (isa.empty()) return tables.front();
  for (const KernelTable* table : tables) {
    if (isa == table->isa) return table;
  }
  if (std::ranges::find(kNames, isa) == kNames.end()) {
    return invalid(fmt::format("unknown instruction set \"{}\": expected one of {}", isa, fmt::join(kNames, ", ")));
  }
  return fail(Error::Code::kUnsupported,
              fmt::format("this processor ({}) cannot run the {} kernels", cpu_info().name, isa));
}

}  // namespace calla
