#pragma once

#include <cstdint>

namespace calla {

// How often operator new has been called in this program, by any thread.
uint64_t allocations();

}  // namespace calla
