#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/char_dfa.h"

namespace calla {

// The texts that match a regular expression of ECMA-262 with the u flag, as JSON Schema means it: somewhere, unless ^
// and $ say otherwise. Lazy quantifiers mean the same as greedy ones here. Refused, each by name: look-around, word
// boundaries, back references, and properties other than L, M and N (by Unicode 15). Also refused: patterns of more
// than 4,096 bytes, groups nested deeper than 64, counts above 1,000, and what needs more than CharDfa::kMaxStates
// states.
Result<CharDfa> regex_dfa(std::string_view pattern);

}  // namespace calla
