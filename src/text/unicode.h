#pragma once

#include <cstdint>

namespace calla {

// What the pre-tokenizer and NFC need to know of a code point, by Unicode 15.0. The tables are made by
// tools/gen_unicode.py.
enum class CharClass : uint8_t {
  kOther = 0,   // punctuation, symbols, controls, unassigned
  kLetter = 1,  // \p{L}
  kMark = 2,    // \p{M}
  kNumber = 3,  // \p{N}
  kSpace = 4,   // \s, that is White_Space
};

namespace unicode_detail {
inline constexpr uint32_t kBlockSize = 128;
inline constexpr uint8_t kClassMask = 7;
inline constexpr uint8_t kNfcUnsafe = 8;
extern const uint8_t kBlockOf[];
extern const uint8_t kBlocks[][kBlockSize];
inline uint8_t properties(uint32_t c) {
  return kBlocks[kBlockOf[c / kBlockSize]][c % kBlockSize];
}
}  // namespace unicode_detail

// REQUIRES: c <= 0x10FFFF, here and below.
inline CharClass char_class(uint32_t c) {
  return static_cast<CharClass>(unicode_detail::properties(c) & unicode_detail::kClassMask);
}

// True when text of such characters is already NFC and stays NFC wherever it is cut before c: c has combining class 0
// and NFC_Quick_Check=Yes, so nothing to its left composes with it or is reordered over it.
inline bool nfc_boundary(uint32_t c) {
  return (unicode_detail::properties(c) & unicode_detail::kNfcUnsafe) == 0;
}

}  // namespace calla
