#pragma once

#include <span>
#include <string_view>

#include "backend/cpu/kernels.h"
#include "base/result.h"

namespace calla {

// The kernel tables that this processor can run, best first; "scalar" is always the last.
std::span<const KernelTable* const> available_tables();

// The table named `isa`, or the best one for "". Errors: a name that does not exist, or one that this processor or
// build cannot run.
Result<const KernelTable*> select_table(std::string_view isa);

}  // namespace calla
