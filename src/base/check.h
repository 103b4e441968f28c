#pragma once

// CHECK(condition, "why"): aborts with file and line. Only for our own bugs; never reachable from input.
// DCHECK is the same in builds without NDEBUG and nothing otherwise.

namespace calla {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* why);
}

#define CHECK(condition, why)                                     \
  do {                                                            \
    if (!(condition)) [[unlikely]]                                \
      ::calla::check_failed(__FILE__, __LINE__, #condition, why); \
  } while (0)

#ifdef NDEBUG
#define DCHECK(condition, why) \
  do {                         \
  } while (0)
#else
#define DCHECK(condition, why) CHECK(condition, why)
#endif
