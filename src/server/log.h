#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace calla {

enum class LogLevel : uint8_t { kError, kWarning, kInfo, kDebug };

// One line an event, for people ("22:51:03 info #17 request status=200 …") or, as JSON, for programs. Thread-safe; a
// line is written in one piece.
class Log {
 public:
  using Value = std::variant<int64_t, double, std::string>;
  using Field = std::pair<std::string_view, Value>;

  // `file` stays the caller's.
  Log(LogLevel level, bool json, std::FILE* file) : level_(level), json_(json), file_(file) {}

  // `request`: its number, 0 for none. Control characters are escaped, text that is not UTF-8 repaired.
  void write(LogLevel level, uint64_t request, std::string_view message, const std::vector<Field>& fields = {});

 private:
  const LogLevel level_;
  const bool json_;
  std::FILE* const file_;
  std::mutex mutex_;
};

}  // namespace calla
