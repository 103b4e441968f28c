#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"
#include "text/prompt.h"
#include "text/vocab.h"

namespace calla {

// The byte-level BPE tokenizer of Qwen3.5 and 3.6, read from a checkpoint's tokenizer.json.
//
//   text → NFC → pieces (pretokenize.h) → bytes of each piece, merged by rank (bpe.h) → ids
//
// "Added tokens", here called control tokens, are the 33 markers such as <|im_end|> or <think>: they are never the
// result of merging. Input that is not UTF-8 is read like a browser or Rust's lossy conversion reads it: each maximal
// invalid part is U+FFFD.
//
// Thread safety: const methods may be called from any number of threads at once.
class Tokenizer {
 public:
  // Reads `dir`/tokenizer.json, and the added tokens of `dir`/tokenizer_config.json where that file exists.
  static Result<Tokenizer> load(const std::filesystem::path& dir);
  // The same from the contents of the two files; `tokenizer_config` may be empty. Errors name the file and field.
  static Result<Tokenizer> parse(std::string_view tokenizer_json, std::string_view tokenizer_config = {});

  // Appends the ids of plain text: never a control token, whatever the text says.
  void encode(std::string_view text, std::vector<int32_t>& out) const;

  // The prompt's markers become their ids, everything between is plain. An error if this tokenizer lacks a marker.
  Result<std::vector<int32_t>> encode(const Prompt& prompt) const;

  // As Hugging Face tokenizers does it: control tokens are recognised anywhere in the text, the leftmost and there the
  // longest. For raw prompts and tests; never for text that others wrote.
  std::vector<int32_t> encode_official(std::string_view text) const;

  std::optional<int32_t> control_id(std::string_view marker) const;

  // The raw bytes of a token, which need not be whole UTF-8 characters. Empty for ids that have no token (the
  // vocabulary's padding, or out of range). The view lives as long as the tokenizer.
  std::string_view bytes(int32_t id) const { return vocab_.bytes(id); }

  bool is_control(int32_t id) const { return kind(id) != Kind::kPlain; }
  // A control token with "special": true, which a detokenizer leaves out of the text (<think> and <tool_call> are not
  // special).
  bool is_special(int32_t id) const { return kind(id) == Kind::kSpecial; }

  // One past the largest id that has a token.
  int32_t size() const { return vocab_.size(); }

 private:
  friend class TokenizerReader;  // tokenizer_json.cc
  enum class Kind : uint8_t { kPlain, kControl, kSpecial };
  // Whether BPE of a token's bytes gives the token itself. Found out when first asked; racing threads store the same
  // answer.
  enum class Whole : uint8_t { kUnknown, kYes, kNo };

  Tokenizer() = default;
  Kind kind(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < kinds_.size() ? kinds_[static_cast<size_t>(id)] : Kind::kPlain;
  }
  void encode_piece(std::string_view piece, std::vector<int32_t>& out) const;

  Vocab vocab_;
  Bpe bpe_;
  std::vector<Kind> kinds_;                        // [size]
  std::vector<int32_t> controls_;                  // longest marker first
  mutable std::vector<std::atomic<Whole>> whole_;  // [size]
};

}  // namespace calla
