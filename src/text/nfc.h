#pragma once

#include <string>
#include <string_view>

namespace calla {

// True only for text that is already in Unicode normalisation form C; may be false for such text, too. Fast.
// REQUIRES: valid UTF-8, here and below.
bool surely_nfc(std::string_view text);

// The text in normalisation form C. O(n log n) whatever the text: it sorts runs of combining marks itself, because
// utf8proc reorders them by insertion, which takes hours for a megabyte of marks in alternating order.
std::string nfc(std::string_view text);

}  // namespace calla
