#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace calla {

// Turns a stream of token ids into text. Only whole UTF-8 characters come out: the bytes of a character that is still
// incomplete are held back (at most three). Bytes that can no longer become a character come out as U+FFFD, one for
// each maximal invalid part; so all pieces joined are what Hugging Face's ByteLevel decoder gives for all ids at once.
// Not thread-safe; one detokenizer for each stream. The tokenizer must outlive it.
class Detokenizer {
 public:
  // skip_special: leave out special tokens such as <|im_end|>. Control tokens that are not special (<think>) always
  // come out.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that is certain after one more token; may be empty. Ids without a token add nothing.
  std::string push(int32_t id);

  // Ends the stream: what was held back becomes U+FFFD. The detokenizer can then be used for another stream.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string held_;  // the start of a character
};

}  // namespace calla
