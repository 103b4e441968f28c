#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace calla {

// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
bool valid_utf8(std::string_view text);

// The text with each maximal invalid part replaced by U+FFFD (Unicode 15, section 3.9; Rust's from_utf8_lossy and the
// browsers' TextDecoder do the same), so the result is always valid.
std::string repair_utf8(std::string_view text);

// How many bytes at the end of the text, 0 to 3, are the start of a character that more bytes could complete.
size_t incomplete_utf8(std::string_view text);

// The length of the character with this first byte. REQUIRES: the byte starts a valid character.
inline size_t utf8_length(char first) {
  const auto b = static_cast<uint8_t>(first);
  return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

// The character at p. REQUIRES: valid UTF-8.
inline uint32_t utf8_at(const char* p) {
  auto byte = [p](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  switch (utf8_length(*p)) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
}

// REQUIRES: a Unicode scalar value.
void append_utf8(uint32_t c, std::string& out);

}  // namespace calla
