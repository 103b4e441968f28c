#include "text/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>

#include "base/random.h"
#include "text/utf8.h"

namespace calla {
namespace {

// The plain way: everything through utf8proc, whose ordering of marks is quadratic.
std::string nfc_plain(const std::string& s) {
  utf8proc_uint8_t* out = nullptr;
  const auto n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(s.data()), static_cast<utf8proc_ssize_t>(s.size()), &out,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  EXPECT_GE(n, 0);
  std::string result(reinterpret_cast<char*>(out), static_cast<size_t>(n));
  std::free(out);
  return result;
}

TEST(Nfc, Examples) {
  const std::pair<std::string, std::string> cases[] = {
      {"e\u0301", "\u00e9"},
      {"\u212b", "\u00c5"},               // Ångström sign
      {"\u1100\u1161\u11a8", "\uac01"},   // Hangul
      {"\u0958", "\u0915\u093c"},         // excluded from composition
      {"a\u0316\u0301", "\u00e1\u0316"},  // the acute composes over the grave below
      {"\u0344", "\u0308\u0301"},
      {"x\u0345\u0300", "x\u0300\u0345"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(nfc(text), expected);
}

TEST(Nfc, EqualsUtf8procOnEveryCharacterAndAfterALetter) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string s;
    append_utf8(c, s);
    ASSERT_EQ(nfc(s), nfc_plain(s)) << std::hex << c;
    ASSERT_TRUE(!surely_nfc(s) || nfc_plain(s) == s) << std::hex << c;
    s = std::string("a").append(s);
    s += "\u0323";
    ASSERT_EQ(nfc(s), nfc_plain(s)) << std::hex << c;
  }
}

TEST(Nfc, EqualsUtf8procOnRandomText) {
  const std::string parts[] = {"a",      "e",      "\u0301",
                               "\u0316", "\u0323", "\u0307",
                               "\u0344", "\u0f73", "\u0f71",
                               "\u0f80", "\u1100", "\u1161",
                               "\u11a8", "\uac00", "\u212b",
                               "\u0958", "\u3099", "か",
                               "中",     "\u1e9b", "plain text that is long enough for a whole block of bytes "};
  Random random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string s;
    for (auto n = random.below(24); n > 0; --n) s += parts[random.below(std::size(parts))];
    const std::string composed = nfc(s);
    ASSERT_EQ(composed, nfc_plain(s)) << s;
    ASSERT_EQ(nfc(composed), composed) << s;
    ASSERT_TRUE(!surely_nfc(s) || composed == s) << s;
  }
}

// With an insertion sort these take hours.
TEST(Nfc, ManyMarksTakeLittleTime) {
  std::string alternating = "a";
  std::string decomposing = "a";
  for (int i = 0; i < 200000; ++i) {
    alternating += "\u0301\u0316";
    decomposing += "\u0f73";
  }
  EXPECT_EQ(nfc(alternating).substr(0, 4), "\u00e1\u0316");
  EXPECT_EQ(nfc(decomposing).size(), 1u + 200000 * 6);
}

}  // namespace
}  // namespace calla
