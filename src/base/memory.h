#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace calla {

// Bytes of memory that this process could still take without swapping: MemAvailable of the system, or what is left of
// the cgroup's limit where that is less.
uint64_t available_memory();

// Bytes of memory of the machine, or the cgroup's limit.
uint64_t total_memory();

// What the control groups of this process allow, of version 1 or 2, its own or one above, in bytes; the largest number
// where nothing limits. Reads proc/self/cgroup and sys/fs/cgroup below `root`, which is "/" except in tests.
struct GroupMemory {
  uint64_t limit = 0;  // the least on the way up
  uint64_t left = 0;   // the same less the group's anonymous memory
};
GroupMemory cgroup_memory(const std::filesystem::path& root);

// Bytes that this process has in memory now.
struct ProcessMemory {
  uint64_t anonymous = 0;  // its own
  uint64_t total = 0;      // with mapped files, which the system can drop
};
ProcessMemory process_memory();

// Takes the memory of a large block from the system at once: cheaper than a fault for each page that is written first.
// Only a hint.
void take_pages(void* block, size_t bytes);

// For a process that runs long: blocks of half a MiB and more come from the system and go back to it. Otherwise glibc
// raises that limit as large blocks are freed, and its aligned blocks below it leave holes that it cannot use again:
// states that come and go would let the heap grow without end. Call it before the first of them.
void keep_heap_flat();

}  // namespace calla
