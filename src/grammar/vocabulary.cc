#include "grammar/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>

#include "text/utf8.h"

namespace calla {
namespace {

// How many characters a token of plain characters has; nothing for others.
std::optional<uint32_t> plain_length(std::string_view text) {
  const auto special = [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == '"' || c == '\\'; };
  if (std::any_of(text.begin(), text.end(), special) || !valid_utf8(text)) return std::nullopt;
  // Slices are also allowed in texts that must not hold a marker of a tool call, of which none is shorter than this.
  if (text.find('<') != text.npos && text.size() >= 10) return std::nullopt;
  const auto starts = [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; };
  return static_cast<uint32_t>(std::count_if(text.begin(), text.end(), starts));
}

GrammarVocabulary::Trie make_trie(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  GrammarVocabulary::Trie trie;
  std::vector<uint32_t> path;  // the nodes of the last token's bytes
  std::string_view last;
  const auto leave = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) trie.nodes[path.back()].end = static_cast<uint32_t>(trie.nodes.size());
  };
  for (const auto& [text, id] : tokens) {
    const auto apart = std::mismatch(last.begin(), last.end(), text.begin(), text.end()).second;
    leave(static_cast<size_t>(apart - text.begin()));
    const auto first = static_cast<uint32_t>(trie.tokens.size());
    for (size_t i = path.size(); i < text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(trie.nodes.size()));
      trie.nodes.push_back({0, first, static_cast<uint16_t>(i + 1), static_cast<uint8_t>(text[i]), false});
    }
    trie.nodes.back().ends = true;
    trie.tokens.push_back(id);
    last = text;
  }
  leave(0);
  trie.nodes.push_back({0, static_cast<uint32_t>(trie.tokens.size()), 0, 0, false});
  return trie;
}

}  // namespace

Result<GrammarVocabulary> GrammarVocabulary::build(const Tokenizer& tokenizer, std::span<const int32_t> stop_ids) {
  GrammarVocabulary v;
  v.tokens_.resize(static_cast<size_t>(tokenizer.size()));
  std::array<std::vector<std::pair<std::string_view, int32_t>>, kSlices.size()> plain;
  std::vector<std::pair<std::string_view, int32_t>> others;
  std::bitset<256> single;
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string_view text = tokenizer.bytes(id);
    if (text.empty() || tokenizer.is_control(id)) continue;
    if (text.size() > kMaxToken) return invalid(fmt::format("token {} is longer than {} bytes", id, kMaxToken));
    v.tokens_[static_cast<size_t>(id)] = {static_cast<uint32_t>(v.bytes_.size()), static_cast<uint32_t>(text.size())};
    v.bytes_ += text;
    v.longest_ = std::max(v.longest_, text.size());
    if (text.size() == 1) single.set(static_cast<uint8_t>(text[0]));
    if (const auto length = plain_length(text)) {
      const auto slice = std::lower_bound(kSlices.begin(), kSlices.end(), *length) - kSlices.begin();
      plain[static_cast<size_t>(slice)].emplace_back(text, id);
    } else {
      others.emplace_back(text, id);
    }
  }
  for (int b = 0; b < 256; ++b) {
    if (!single[static_cast<size_t>(b)]) return invalid(fmt::format("the tokenizer has no token for byte {} alone", b));
  }
  for (const int32_t id : stop_ids) {
    if (id >= 0 && id < tokenizer.size()) v.stop_ids_.push_back(id);
  }
  if (v.stop_ids_.empty()) return invalid("the tokenizer has no token that ends an answer");
  std::vector<uint64_t> mask(v.words());
  for (size_t s = 0; s < kSlices.size(); ++s) {
    for (const auto& [text, id] : plain[s]) mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    v.plain_[s] = mask;
    v.slices_[s] = make_trie(std::move(plain[s]));
  }
  v.others_ = make_trie(std::move(others));
  v.tool_call = tokenizer.control_id("<tool_call>");
  v.tool_call_end = tokenizer.control_id("</tool_call>");
  return v;
}

bool GrammarVocabulary::is_stop(int32_t id) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end();
}

}  // namespace calla
