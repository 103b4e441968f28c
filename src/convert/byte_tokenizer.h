#pragma once

#include <cstdint>
#include <string>

namespace calla {

// Ids of the 33 control tokens, <|endoftext|> first, in a vocabulary of `vocab` rows: where Qwen3.6 has them if they
// fit there, otherwise right behind the 256 byte tokens.
int32_t first_control_id(int vocab);
inline constexpr int kControlTokens = 33;

// A tokenizer.json for a model that was never trained: one token per byte (ids 0 to 255 in GPT-2's order) and the
// control tokens of Qwen3.6 from `first_control` on; no merges.
std::string byte_tokenizer_json(int32_t first_control);

}  // namespace calla
