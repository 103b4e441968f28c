#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

namespace calla {

std::string format_bytes(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto v = static_cast<double>(bytes);
  int u = 0;
  while (v >= 1024 && u < 4) {
    v /= 1024;
    ++u;
  }
  return u == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.{}f} {}", v, v < 100 ? 1 : 0, units[u]);
}

std::string format_count(uint64_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string format_duration(double seconds) {
  const auto s = static_cast<long>(seconds + 0.5);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

Progress::Progress(std::string label, uint64_t total, Unit unit)
    : label_(std::move(label)), total_(total), unit_(unit), terminal_(::isatty(2) == 1) {}

Progress::~Progress() {
  const double seconds = seconds_since(start_);
  if (drawn_) {
    draw();
    std::fputc('\n', stderr);
  } else if (!terminal_ && seconds > 2) {
    std::fprintf(stderr, "%s: done in %s\n", label_.c_str(), format_duration(seconds).c_str());
  }
}

void Progress::update(uint64_t done) {
  done_ = done;
  if (!terminal_) return;
  const auto now = Clock::now();
  using namespace std::chrono_literals;
  if (now - start_ < 500ms || now - last_ < 100ms) return;
  last_ = now;
  draw();
}

void Progress::draw() {
  const double seconds = seconds_since(start_);
  const double share = total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 1.0;
  const double rate = seconds > 0 ? static_cast<double>(done_) / seconds : 0;
  const int width = 24;
  const int filled = static_cast<int>(share * width + 0.5);
  const std::string left =
      share > 0 && share < 1 ? format_duration(seconds * (1 - share) / share) : format_duration(seconds);
  const std::string speed =
      unit_ == Unit::kBytes ? format_bytes(static_cast<uint64_t>(rate)) + "/s" : fmt::format("{:.1f}/s", rate);
  std::fprintf(stderr, "\r%s [%s%s] %3.0f%% %s %s %s\x1b[K", label_.c_str(), std::string(filled, '#').c_str(),
               std::string(width - filled, '.').c_str(), share * 100, speed.c_str(), share < 1 ? "left" : "in",
               left.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace calla
