#include "text/pretokenize.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

namespace calla {
namespace {

std::vector<std::string> pieces(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t n = first_piece(text);
    EXPECT_TRUE(n > 0 && n <= text.size());
    if (n == 0 || n > text.size()) break;
    out.emplace_back(text.substr(0, n));
    text.remove_prefix(n);
  }
  return out;
}

TEST(Pretokenize, Examples) {
  using Pieces = std::vector<std::string>;
  const std::pair<std::string, Pieces> cases[] = {
      {"Hello, world!", {"Hello", ",", " world", "!"}},
      {"it's WE'LL 'twas 'x", {"it", "'s", " WE", "'LL", " '", "twas", " '", "x"}},
      {"'\u017fa '\u0301", {"'\u017f", "a", " '", "\u0301"}},
      {"12 ½", {"1", "2", " ", "½"}},
      {"a  b   c", {"a", " ", " b", "  ", " c"}},
      {"a \t\tb  ", {"a", " \t", "\tb", "  "}},
      {"x \n\n  y\r\n", {"x", " \n\n", " ", " y", "\r\n"}},
      {"f(x);\n\ng", {"f", "(x", ");\n\n", "g"}},
      {" ...\r\n", {" ...\r\n"}},
      {"\u3000我想在apple工作", {"\u3000我想在apple工作"}},
      {"\u0301a\u0301-\u0301b", {"\u0301a\u0301", "-\u0301b"}},
      {"\u0085\ufeff", {"\u0085", "\ufeff"}},
      {"हिन्दी", {"हिन्दी"}},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(pieces(text), expected) << text;
}

// Every string of up to five symbols of an alphabet that has one for each thing that the pattern distinguishes, against
// std::regex. That knows no Unicode, so there s and l are the letters, x stands for a mark, and 1 is the number.
TEST(Pretokenize, EqualsARegularExpressionOnAllShortStrings) {
  const std::string alphabet = "'slx1 \t\n.";
  const std::regex pattern(R"('s|'ll|[^\r\nsl1]?[slx]+|1| ?[^\sslx1]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                           std::regex::optimize);
  std::string text;
  std::string unicode;
  std::vector<size_t> digits;
  for (size_t length = 1; length <= 5; ++length) {
    digits.assign(length, 0);
    for (bool more = true; more;) {
      text.clear();
      unicode.clear();
      std::vector<std::string> expected;
      for (const size_t d : digits) text += alphabet[d];
      for (std::sregex_iterator it(text.begin(), text.end(), pattern); it != std::sregex_iterator(); ++it) {
        std::string piece;
        for (const char c : it->str()) c == 'x' ? piece += "\u0301" : piece += c;
        expected.push_back(piece);
        unicode += piece;
      }
      ASSERT_EQ(pieces(unicode), expected) << text;
      more = false;
      for (size_t& d : digits) {
        if (++d < alphabet.size()) {
          more = true;
          break;
        }
        d = 0;
      }
    }
  }
}

TEST(Pretokenize, LongRunsTakeLinearTime) {
  const std::string spaces(1 << 20, ' ');
  EXPECT_EQ(pieces(spaces), std::vector<std::string>{spaces});
  EXPECT_EQ(pieces(std::string("\n").append(spaces).append("x")).size(), 3u);
  EXPECT_EQ(pieces(std::string(1 << 20, '.')).size(), 1u);
}

}  // namespace
}  // namespace calla
