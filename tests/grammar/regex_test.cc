#include "grammar/regex.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "base/random.h"
#include "grammar/char_dfa.h"
#include "text/utf8.h"

namespace calla {
namespace {

bool matches(const CharDfa& dfa, std::string_view text) {
  uint32_t state = 0;
  for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
    const uint32_t c = utf8_at(text.data() + i);
    bool found = false;
    for (const auto& e : dfa.states[state].edges) {
      if (e.lo > c || c > e.hi) continue;
      state = e.to;
      found = true;
      break;
    }
    if (!found) return false;
  }
  return dfa.states[state].accepts;
}

// Calls f with each text of up to `length` of the letters.
template <class F>
void for_each_text(std::string_view letters, size_t length, const F& f, const std::string& text = {}) {
  f(text);
  if (length == 0) return;
  for (const char c : letters) for_each_text(letters, length - 1, f, text + c);
}

std::string random_pattern(Random& random, int depth) {
  const char* atoms[] = {"a", "b", "[ab]", "[^a]", ".", "\\w", "\\d", "1", "^", "$"};
  const char* counts[] = {"", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,3}", "{1,}", "*?"};
  std::string out;
  for (auto n = random.below(3) + 1; n > 0; --n) {
    if (depth > 0 && random.below(3) == 0) {
      out += fmt::format("({}){}", random_pattern(random, depth - 1), counts[random.below(std::size(counts))]);
      continue;
    }
    const std::string atom = atoms[random.below(std::size(atoms))];
    out += atom;
    if (atom != "^" && atom != "$") out += counts[random.below(std::size(counts))];
  }
  if (depth > 0 && random.below(4) == 0) out += fmt::format("|{}", random_pattern(random, depth - 1));
  return out;
}

// The standard library's expressions backtrack, and are another implementation.
TEST(Regex, AgreesWithTheStandardLibrary) {
  Random random(3);
  for (int i = 0; i < 300; ++i) {
    const std::string pattern = random_pattern(random, 2);
    const auto dfa = regex_dfa(pattern);
    ASSERT_TRUE(dfa) << pattern << ": " << dfa.error().message;
    const std::regex standard(pattern, std::regex::ECMAScript);
    for_each_text("ab1", 5, [&](const std::string& text) {
      ASSERT_EQ(matches(*dfa, text), std::regex_search(text, standard)) << pattern << " on " << text;
    });
  }
}

TEST(CharDfa, CombinesLanguages) {
  const CharDfa a = *regex_dfa("^(ab|b)*$"), b = *regex_dfa("bab"), length = *length_dfa(2, 4);
  const CharDfa both = *intersect(a, b), three = *intersect(both, length);
  const CharDfa free = without_words({"ab", "abb", "aba"}), others = *other_than({"a", "ab", ""});
  for_each_text("ab", 7, [&](const std::string& text) {
    EXPECT_EQ(matches(both, text), matches(a, text) && matches(b, text)) << text;
    EXPECT_EQ(matches(length, text), text.size() >= 2 && text.size() <= 4) << text;
    EXPECT_EQ(matches(three, text), matches(both, text) && matches(length, text)) << text;
    EXPECT_EQ(matches(others, text), text != "a" && text != "ab" && !text.empty()) << text;
  });
  const CharDfa tags = without_words({"<a>", "<ab", "</"});
  for_each_text("<ab>/", 5, [&](const std::string& text) {
    const bool holds = text.find("<a>") != text.npos || text.find("<ab") != text.npos || text.find("</") != text.npos;
    EXPECT_EQ(matches(tags, text), !holds) << text;
  });
  EXPECT_TRUE(intersect(*regex_dfa("^a$"), *regex_dfa("^b$"))->empty());
}

}  // namespace
}  // namespace calla
