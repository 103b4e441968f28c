#include "engine/stop.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace calla {
namespace {

// The plain form: look for the stop string that is complete first, the longest of those that end together.
std::string slow(const std::string& text, const std::vector<std::string>& stops, std::string* matched) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* best = nullptr;
    for (const std::string& s : stops) {
      if (end >= s.size() && text.compare(end - s.size(), s.size(), s) == 0 &&
          (best == nullptr || s.size() > best->size()))
        best = &s;
    }
    if (best == nullptr) continue;
    *matched = *best;
    return text.substr(0, end - best->size());
  }
  return text;
}

TEST(StopStrings, AnyCutGivesTheSame) {
  Random random(2);
  for (int round = 0; round < 20000; ++round) {
    auto letters = [&](int n) {
      std::string s;
      for (int i = 0; i < n; ++i) s += static_cast<char>('a' + random.below(2));
      return s;
    };
    std::vector<std::string> stops(random.below(4));
    for (std::string& s : stops) s = letters(1 + static_cast<int>(random.below(6)));
    const std::string text = letters(static_cast<int>(random.below(24)));
    std::string matched, out;
    const std::string expected = slow(text, stops, &matched);
    StopStrings matcher(stops);
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random.below(5);
      out += matcher.push(text.substr(at, n));
      EXPECT_TRUE(expected.starts_with(out)) << "a part of a stop string was let out";
      at += n;
    }
    if (!matcher.stopped()) out += matcher.finish();
    ASSERT_EQ(out, expected);
    ASSERT_EQ(matcher.matched(), matched);
    ASSERT_EQ(matcher.stopped(), !matched.empty());
  }
}

TEST(StopStrings, HoldsBackOnlyWhatCouldStop) {
  StopStrings stops({"\n\nUser:"});
  EXPECT_EQ(stops.push("Hello\n"), "Hello");
  EXPECT_EQ(stops.push("\nUs"), "");
  EXPECT_EQ(stops.push("A"), "\n\nUsA");
  EXPECT_EQ(stops.push("\n\n\nUser"), "\n");
  EXPECT_EQ(stops.push(": more"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.push("ignored"), "");
  EXPECT_EQ(stops.finish(), "");
}

}  // namespace
}  // namespace calla
