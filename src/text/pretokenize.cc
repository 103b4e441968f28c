#include "text/pretokenize.h"

#include <array>
#include <cstdint>

#include "text/unicode.h"
#include "text/utf8.h"

namespace calla {
namespace {

// One character of the text and what the pattern asks of it. Past the end: length 0, and no test is true.
struct Char {
  size_t length = 0;
  CharClass cls = CharClass::kOther;
  bool newline = false;

  bool letter_or_mark() const { return cls == CharClass::kLetter || cls == CharClass::kMark; }
  bool number() const { return cls == CharClass::kNumber; }
  bool space() const { return cls == CharClass::kSpace; }
  bool other() const { return length > 0 && cls == CharClass::kOther; }
};

Char char_at(std::string_view text, size_t at) {
  if (at >= text.size()) return {};
  const auto b = static_cast<uint8_t>(text[at]);
  if (b < 0x80) return {1, char_class(b), b == '\r' || b == '\n'};
  return {utf8_length(text[at]), char_class(utf8_at(text.data() + at)), false};
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d): the length of a match, or 0. Case folding also equates s with U+017F, the long s.
size_t contraction(std::string_view text) {
  if (text[0] != '\'' || text.size() < 2) return 0;
  const auto lower = [&](size_t i) { return i < text.size() ? static_cast<char>(text[i] | 0x20) : '\0'; };
  const char a = lower(1);
  const char b = lower(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  return text.substr(1, 2) == "\u017f" ? 3 : 0;
}

// The end of the run of characters from `at` on for which `test` is true.
template <class Test>
size_t skip(std::string_view text, size_t at, Test test) {
  for (Char c = char_at(text, at); c.length > 0 && test(c); c = char_at(text, at)) at += c.length;
  return at;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ at the start of the text, which is white space.
size_t spaces(std::string_view text) {
  size_t end = 0;
  size_t last = 0;           // where the run's last character starts
  size_t after_newline = 0;  // the end of the run's last newline
  for (Char c = char_at(text, 0); c.space(); c = char_at(text, end)) {
    last = end;
    end += c.length;
    if (c.newline) after_newline = end;
  }
  if (after_newline > 0) return after_newline;
  // Before something visible, the last space is left for the word that follows; a single space stands alone.
  return end < text.size() && last > 0 ? last : end;
}

}  // namespace

// The alternatives of kPiecePattern in their order. A regular expression takes the first that matches; each test below
// holds exactly when its alternative would match.
size_t first_piece(std::string_view text) {
  if (const size_t n = contraction(text)) return n;
  const auto letter_or_mark = [](const Char& c) { return c.letter_or_mark(); };
  const Char c = char_at(text, 0);
  // [^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+
  if (c.letter_or_mark()) return skip(text, c.length, letter_or_mark);
  if (c.number()) return c.length;  // \p{N}
  const Char next = char_at(text, c.length);
  if (!c.newline && next.letter_or_mark()) return skip(text, c.length + next.length, letter_or_mark);
  //  ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*
  if (c.other() || (text[0] == ' ' && next.other())) {
    const size_t end = skip(text, c.length, [](const Char& x) { return x.other(); });
    return skip(text, end, [](const Char& x) { return x.newline; });
  }
  return spaces(text);
}

}  // namespace calla
