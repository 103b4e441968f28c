#include "server/log.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "server/metrics.h"

namespace calla {
namespace {

std::string logged(bool json, LogLevel level, const std::vector<Log::Field>& fields,
                   std::string_view message = "request") {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* file = ::open_memstream(&text, &size);
  Log log(LogLevel::kInfo, json, file);
  log.write(level, 17, message, fields);
  std::fclose(file);
  std::string out(text, size);
  ::free(text);
  return out;
}

TEST(Log, ALineForPeople) {
  const std::string line =
      logged(false, LogLevel::kInfo, {{"status", int64_t{200}}, {"rate", 12.345678}, {"path", "/a b"}});
  EXPECT_TRUE(std::regex_match(
      line,
      std::regex(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info #17 request status=200 rate=12\.3 path="/a b"\n)")))
      << line;
  EXPECT_EQ(logged(false, LogLevel::kDebug, {}), "");
}

TEST(Log, ALineForPrograms) {
  const std::string line =
      logged(true, LogLevel::kError, {{"status", int64_t{200}}, {"rate", 0.1234567}, {"p", "a\"\xff\n"}});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["level"], "error");
  EXPECT_EQ(json["request"], 17);
  EXPECT_EQ(json["rate"], 0.123457);
  EXPECT_EQ(json["p"], "a\"\uFFFD\n");
}

TEST(Log, TextOfClientsCannotForgeALine) {
  const std::string line =
      logged(false, LogLevel::kInfo, {{"path", "/x\n2026-01-01 info forged\x1b[2J\x7f"}}, "a\r\nb");
  EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_EQ(line.find('\r'), std::string::npos);
  EXPECT_EQ(line.find('\x7f'), std::string::npos);
}

// The format as Prometheus documents it; promtool check metrics says the same of it.
TEST(Metrics, Text) {
  MetricsText out;
  out.family("a_total", "counter", "Things.");
  out.sample(3, {{"route", "/x"}, {"odd", "a\"b\\c\nd"}});
  out.family("b", "gauge", "More.");
  out.sample(0.5);
  Histogram h({0.1, 1});
  out.family("h_seconds", "histogram", "Times.");
  h.add(0.1);
  h.add(0.5);
  h.add(7);
  h.write(out);
  EXPECT_EQ(out.text(),
            "# HELP a_total Things.\n# TYPE a_total counter\na_total{route=\"/x\",odd=\"a\\\"b\\\\c\\nd\"} 3\n"
            "# HELP b More.\n# TYPE b gauge\nb 0.5\n"
            "# HELP h_seconds Times.\n# TYPE h_seconds histogram\n"
            "h_seconds_bucket{le=\"0.1\"} 1\nh_seconds_bucket{le=\"1\"} 2\nh_seconds_bucket{le=\"+Inf\"} 3\n"
            "h_seconds_sum 7.6\nh_seconds_count 3\n");
}

}  // namespace
}  // namespace calla
