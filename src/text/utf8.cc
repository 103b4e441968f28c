#include "text/utf8.h"

#include <simdjson.h>

#include <algorithm>

namespace calla {
namespace {

// What a prefix of the text is: `length` bytes that are a character (complete), that could become one with more bytes
// (cut off by the end of the text), or that are a maximal invalid part.
struct Part {
  size_t length;
  enum { kComplete, kCutOff, kInvalid } state;
};

// REQUIRES: text is not empty.
Part first_part(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return {1, Part::kComplete};
  if (first < 0xc2 || first > 0xf4) return {1, Part::kInvalid};
  const size_t length = utf8_length(text[0]);
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, Part::kCutOff};
    const auto b = static_cast<uint8_t>(text[i]);
    if (b < low || b > high) return {i, Part::kInvalid};
    low = 0x80;
    high = 0xbf;
  }
  return {length, Part::kComplete};
}

}  // namespace

bool valid_utf8(std::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Part part = first_part(text);
    if (part.state == Part::kComplete) {
      out += text.substr(0, part.length);
    } else {
      out += "\xef\xbf\xbd";
    }
    text.remove_prefix(part.length);
  }
  return out;
}

size_t incomplete_utf8(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const std::string_view tail = text.substr(text.size() - n);
    const Part part = first_part(tail);
    if (part.state == Part::kCutOff && part.length == n) return n;
  }
  return 0;
}

void append_utf8(uint32_t c, std::string& out) {
  auto tail = [&](int shift) { out += static_cast<char>(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace calla
