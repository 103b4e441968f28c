#include "text/utf8.h"

#include <gtest/gtest.h>

namespace calla {
namespace {

const std::string kReplacement = "\ufffd";

TEST(Utf8, EveryCharacterRoundTrips) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string s;
    append_utf8(c, s);
    ASSERT_TRUE(valid_utf8(s)) << c;
    ASSERT_EQ(utf8_length(s[0]), s.size()) << c;
    ASSERT_EQ(utf8_at(s.data()), c);
    ASSERT_EQ(repair_utf8(s), s) << c;
    ASSERT_EQ(incomplete_utf8(s), 0u) << c;
    for (size_t n = 1; n < s.size(); ++n) {
      ASSERT_EQ(incomplete_utf8(s + s.substr(0, n)), n) << c;
      ASSERT_EQ(repair_utf8(s.substr(0, n)), kReplacement) << c;
    }
  }
}

// The examples of the Unicode Standard, section 3.9, tables 3-8 to 3-11: R stands for U+FFFD.
TEST(Utf8, MaximalInvalidPartsBecomeOneReplacementEach) {
  const std::pair<std::string, std::string> cases[] = {
      {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", "RRRRRRRRA"},
      {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", "RRRRRRRRA"},
      {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", "RRRRRARRB"},
      {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "RRRRA"},
      {"a\xe4\xb8", "aR"},
      {"\xf0\x9f\x99\xf0\x9f\x99\x82", "R\U0001f642"},
  };
  for (const auto& [bytes, expected] : cases) {
    std::string want;
    for (const char c : expected) c == 'R' ? want += kReplacement : want += c;
    EXPECT_FALSE(valid_utf8(bytes));
    EXPECT_EQ(repair_utf8(bytes), want);
  }
}

TEST(Utf8, OnlyAStartThatCanBeCompletedIsIncomplete) {
  EXPECT_EQ(incomplete_utf8(""), 0u);
  EXPECT_EQ(incomplete_utf8("\xc3"), 1u);
  EXPECT_EQ(incomplete_utf8("\xe0\x9f"), 0u) << "overlong";
  EXPECT_EQ(incomplete_utf8("\xed\xa0"), 0u) << "a surrogate";
  EXPECT_EQ(incomplete_utf8("\xf4\x90"), 0u) << "above U+10FFFF";
  EXPECT_EQ(incomplete_utf8("\x80"), 0u);
  EXPECT_EQ(incomplete_utf8("\xff"), 0u);
}

}  // namespace
}  // namespace calla
