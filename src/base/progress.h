#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace calla {

// A progress line on standard error: done/total, rate and time left. Drawn only on a terminal, at most ten times a
// second and only once the work has lasted half a second; on anything else it prints one plain line at the end of long
// work (over two seconds). Not thread-safe: one thread reports.
class Progress {
 public:
  enum class Unit { kBytes, kItems };
  Progress(std::string label, uint64_t total, Unit unit = Unit::kBytes);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();
  void advance(uint64_t amount) { update(done_ + amount); }
  void update(uint64_t done);

 private:
  void draw();
  std::string label_;
  uint64_t total_;
  uint64_t done_ = 0;
  Unit unit_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

// 1536 → "1.5 KiB".
std::string format_bytes(uint64_t bytes);
// 131072 → "131,072".
std::string format_count(uint64_t n);
// 75 s → "1m15s".
std::string format_duration(double seconds);

}  // namespace calla
