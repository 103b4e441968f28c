#pragma once

#include <cstddef>
#include <string_view>

namespace calla {

// The one pre-tokenizer pattern that this code knows, as tokenizer.json spells it (Oniguruma syntax).
inline constexpr std::string_view kPiecePattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The length in bytes of the pattern's match at the start of `text`; pieces follow each other without gaps. Takes time
// linear in the piece, plus the length of a run of white space. REQUIRES: valid UTF-8, not empty.
size_t first_piece(std::string_view text);

}  // namespace calla
