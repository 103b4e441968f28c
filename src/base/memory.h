#pragma once

#include <cstdint>

namespace calla {

// Bytes of memory that this process could still take without swapping: MemAvailable of the system, or what is left of
// the cgroup's limit where that is less.
uint64_t available_memory();

// Bytes of memory of the machine.
uint64_t total_memory();

// Bytes that this process has in memory now.
struct ProcessMemory {
  uint64_t anonymous = 0;  // its own
  uint64_t total = 0;      // with mapped files, which the system can drop
};
ProcessMemory process_memory();

}  // namespace calla
