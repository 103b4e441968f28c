#include "text/tokenizer.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "text/nfc.h"
#include "text/pretokenize.h"
#include "text/utf8.h"

namespace calla {

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& out) const {
  std::string storage;
  if (!valid_utf8(text)) text = storage = repair_utf8(text);
  if (!surely_nfc(text)) text = storage = nfc(text);
  while (!text.empty()) {
    const size_t n = first_piece(text);
    encode_piece(text.substr(0, n), out);
    text.remove_prefix(n);
  }
}

void Tokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& out) const {
  const int32_t id = vocab_.find(piece);
  if (id == Vocab::kNone) return bpe_.encode(piece, out);
  std::atomic<Whole>& whole = whole_[static_cast<size_t>(id)];
  const Whole known = whole.load(std::memory_order_relaxed);
  if (known == Whole::kYes) return out.push_back(id);
  const size_t before = out.size();
  bpe_.encode(piece, out);
  if (known == Whole::kUnknown) {
    const bool yes = out.size() == before + 1 && out.back() == id;
    whole.store(yes ? Whole::kYes : Whole::kNo, std::memory_order_relaxed);
  }
}

Result<std::vector<int32_t>> Tokenizer::encode(const Prompt& prompt) const {
  const std::string_view text = prompt.text;
  std::vector<int32_t> out;
  size_t done = 0;
  for (const Span& span : prompt.controls) {
    CHECK(span.offset >= done && span.offset <= text.size() && span.length <= text.size() - span.offset,
          "a prompt's controls are sorted, disjoint and inside the text");
    const std::string_view marker = text.substr(span.offset, span.length);
    const std::optional<int32_t> id = control_id(marker);
    if (!id) return invalid(fmt::format("the tokenizer has no control token \"{}\"", marker));
    encode(text.substr(done, span.offset - done), out);
    out.push_back(*id);
    done = span.offset + span.length;
  }
  encode(text.substr(done), out);
  return out;
}

std::vector<int32_t> Tokenizer::encode_official(std::string_view text) const {
  bool starts_marker[256] = {};
  for (const int32_t id : controls_) starts_marker[static_cast<uint8_t>(bytes(id)[0])] = true;
  std::vector<int32_t> out;
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    size_t matched = 0;
    if (starts_marker[static_cast<uint8_t>(text[i])]) {
      for (const int32_t id : controls_) {
        if (!text.substr(i).starts_with(bytes(id))) continue;
        encode(text.substr(done, i - done), out);
        out.push_back(id);
        matched = bytes(id).size();
        done = i + matched;
        break;
      }
    }
    i += matched > 0 ? matched : 1;
  }
  encode(text.substr(done), out);
  return out;
}

std::optional<int32_t> Tokenizer::control_id(std::string_view marker) const {
  for (const int32_t id : controls_) {
    if (bytes(id) == marker) return id;
  }
  return std::nullopt;
}

}  // namespace calla
