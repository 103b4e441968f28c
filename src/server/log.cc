#include "server/log.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace calla {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"error", "warning", "info", "debug"};

std::string timestamp(const char* format, bool utc) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  utc ? ::gmtime_r(&seconds, &parts) : ::localtime_r(&seconds, &parts);
  std::array<char, 40> text{};
  std::string out(text.data(), std::strftime(text.data(), text.size(), format, &parts));
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  return out + fmt::format(".{:03}", since % 1000);
}

std::string escaped(std::string_view raw) {
  std::string out;
  for (const char c : repair_utf8(raw)) {
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string for_people(const Log::Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{:.3g}", *number);
  const std::string text = escaped(std::get<std::string>(value));
  return text.find_first_of(" \"=") == std::string::npos ? text : nlohmann::json(text).dump();
}

nlohmann::ordered_json for_programs(const Log::Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  if (const auto* number = std::get_if<double>(&value)) return std::round(*number * 1e6) / 1e6;
  return repair_utf8(std::get<std::string>(value));
}

}  // namespace

void Log::write(LogLevel level, uint64_t request, std::string_view message, const std::vector<Field>& fields) {
  if (level > level_) return;
  const std::string_view name = kNames[static_cast<size_t>(level)];
  std::string line;
  if (json_) {
    nlohmann::ordered_json object = {{"time", timestamp("%Y-%m-%dT%H:%M:%S", true) + "Z"}, {"level", name}};
    if (request != 0) object["request"] = request;
    object["message"] = repair_utf8(message);
    for (const Field& field : fields) object[std::string(field.first)] = for_programs(field.second);
    line = object.dump();
  } else {
    line = fmt::format("{} {}", timestamp("%Y-%m-%d %H:%M:%S", false), name);
    if (request != 0) line += fmt::format(" #{}", request);
    line.append(" ").append(escaped(message));
    for (const Field& field : fields) line += fmt::format(" {}={}", field.first, for_people(field.second));
  }
  line += '\n';
  const std::scoped_lock lock(mutex_);
  std::fwrite(line.data(), 1, line.size(), file_);
  std::fflush(file_);
}

}  // namespace calla
