#include "text/chat_json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/random.h"

namespace calla {
namespace {

// The value as Python's json.dumps(json.loads(text), ensure_ascii=False) prints it.
std::string reprinted(const std::string& text) {
  const auto value = parse_json(text);
  return value ? python_json(*value) : "error: " + value.error().message;
}

// The right column is what Python 3.11 printed.
TEST(ChatJson, NumbersPrintAsInPython) {
  const std::pair<const char*, const char*> cases[] = {
      {"0", "0"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1.0", "1.0"},
      {"1.50", "1.5"},
      {"0.1", "0.1"},
      {"1E5", "100000.0"},
      {"1e15", "1000000000000000.0"},
      {"9999999999999998.0", "9999999999999998.0"},
      {"1e16", "1e+16"},
      {"-1e16", "-1e+16"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"1e22", "1e+22"},
      {"0.0001", "0.0001"},
      {"-0.00012", "-0.00012"},
      {"0.00001", "1e-05"},
      {"1e-7", "1e-07"},
      {"1.5e-10", "1.5e-10"},
      {"1e100", "1e+100"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"9223372036854775807", "9223372036854775807"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"18446744073709551615", "18446744073709551615"},
      {"18446744073709551616", "18446744073709551616"},
      {"-9223372036854775809", "-9223372036854775809"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(reprinted(text), expected) << text;
}

TEST(ChatJson, EveryFloatReadsBackToItself) {
  const uint64_t seed = 7;
  Random random(seed);
  for (int i = 0; i < 100000; ++i) {
    const double v =
        i % 2 == 0 ? std::bit_cast<double>(random.next()) : (random.uniform() - 0.5) * std::pow(10, i % 40 - 20);
    if (!std::isfinite(v)) continue;
    const std::string text = python_json(v);
    ASSERT_TRUE(text.find_first_of(".e") != text.npos) << text;
    ASSERT_EQ(std::bit_cast<uint64_t>(std::strtod(text.c_str(), nullptr)), std::bit_cast<uint64_t>(v))
        << text << ", seed " << seed;
    ASSERT_EQ(reprinted(text), text);
  }
}

TEST(ChatJson, StringsEscapeOnlyWhatPythonEscapes) {
  EXPECT_EQ(reprinted(R"("\u0000\u0001\b\t\n\u000b\f\r\u001f")"), R"("\u0000\u0001\b\t\n\u000b\f\r\u001f")");
  EXPECT_EQ(reprinted(R"("\" \\ \/ < > & '")"), R"("\" \\ / < > & '")");
  EXPECT_EQ(reprinted(R"("\u007f \u2028 \u00e9 \ud83d\ude42")"), "\"\x7f \xe2\x80\xa8 é 🙂\"");
}

TEST(ChatJson, ContainersKeepTheirOrder) {
  EXPECT_EQ(reprinted(R"({"b":1,"a":[true,false,null,{},[]],"":{"x":[1,2]}})"),
            R"({"b": 1, "a": [true, false, null, {}, []], "": {"x": [1, 2]}})");
}

TEST(ChatJson, TheLastOfEqualKeysCountsInTheFirstOnesPlace) {
  EXPECT_EQ(reprinted(R"({"a":1,"b":2,"a":{"c":3}})"), R"({"a": {"c": 3}, "b": 2})");
}

TEST(ChatJson, RefusesWithThePlace) {
  EXPECT_EQ(reprinted("{\n  \"a\": tru }"), "error: not valid JSON at line 2, column 11");
  EXPECT_EQ(reprinted(""), "error: not valid JSON at line 1, column 1");
  EXPECT_EQ(reprinted("[1] 2"), "error: not valid JSON at line 1, column 5");
  EXPECT_EQ(reprinted("NaN"), "error: not valid JSON at line 1, column 1");
  EXPECT_EQ(reprinted("\"\xff\""), "error: not valid JSON at line 1, column 2");
  EXPECT_EQ(reprinted(R"("\ud800")"), "error: not valid JSON at line 1, column 8");
  EXPECT_EQ(reprinted("[1e999]"), "error: a number is out of range at line 1, column 6");
}

TEST(ChatJson, NestingIsCapped) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  const auto at_limit = parse_json(nested(kMaxJsonDepth));
  ASSERT_TRUE(at_limit);
  EXPECT_FALSE(deeper_than(*at_limit, kMaxJsonDepth));
  EXPECT_TRUE(deeper_than(*at_limit, kMaxJsonDepth - 1));
  EXPECT_EQ(reprinted(nested(kMaxJsonDepth + 1)), "error: nested deeper than 64 levels");
  EXPECT_EQ(reprinted(std::string(1000000, '[')), "error: nested deeper than 64 levels");
  EXPECT_EQ(reprinted("{\"a\":" + nested(kMaxJsonDepth) + "}"), "error: nested deeper than 64 levels");
}

// Quadratic work would take minutes here.
TEST(ChatJson, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 300000; ++i) text += fmt::format("\"{}\":0,", i);
  text.back() = '}';
  const auto value = parse_json(text);
  ASSERT_TRUE(value);
  EXPECT_EQ(value->size(), 300000u);
}

}  // namespace
}  // namespace calla
