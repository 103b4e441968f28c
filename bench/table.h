#pragma once

#include <cstdio>
#include <cstdlib>

#include "backend/cpu/select.h"

namespace calla {

// The kernel table that CALLA_ISA names, or the best one. Ends the program where this processor cannot run it.
inline const KernelTable& table() {
  const char* isa = std::getenv("CALLA_ISA");
  const auto selected = select_table(isa == nullptr ? "" : isa);
  if (!selected) {
    std::fprintf(stderr, "%s\n", selected.error().message.c_str());
    std::exit(2);
  }
  return **selected;
}

}  // namespace calla
