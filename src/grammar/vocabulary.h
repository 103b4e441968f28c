#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace calla {

// The tokens of a tokenizer as tries of their bytes, for finding all that a grammar allows at once. Immutable; safe to
// use from several threads. Independent of the tokenizer once built: about 12 bytes for each of its tries' nodes (7 MB
// for the large model), built in about a tenth of a second.
//
// A plain character is one that a JSON string holds as it is: not a control, a quote or a backslash. Most tokens are
// nothing but plain characters. They are kept in slices by how many they have, so that where a grammar allows any run
// of them (inside a string) a whole slice is allowed without a look at its trie.
class GrammarVocabulary {
 public:
  struct Node {
    uint32_t end;    // one past the last node below this one
    uint32_t first;  // of Trie::tokens: the tokens that go through this node are [first, nodes[end].first)
    uint16_t depth;  // of the byte, from 1
    uint8_t byte;
    bool ends;  // the first of them ends here
  };
  struct Trie {
    std::vector<Node> nodes;      // parents before children; the last one, of depth 0, is behind all
    std::vector<int32_t> tokens;  // in the order of their nodes
  };

  // Slice s holds the plain tokens of more than kSlices[s - 1] and at most kSlices[s] characters.
  static constexpr std::array<uint32_t, 5> kSlices = {4, 8, 16, 32, ~uint32_t{0}};

  // stop_ids: the tokens that may end an answer. Control tokens are in no trie. Errors: no stop token in range; a byte
  // that is no token of its own, or a token longer than kMaxToken bytes, so that a grammar could get stuck.
  static Result<GrammarVocabulary> build(const Tokenizer& tokenizer, std::span<const int32_t> stop_ids);
  static constexpr size_t kMaxToken = 1024;

  // One past the largest id.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  // The words of a mask.
  size_t words() const { return (tokens_.size() + 63) / 64; }
  // Empty for control tokens and ids without a token.
  std::string_view bytes(int32_t id) const {
    if (id < 0 || id >= size()) return {};
    return std::string_view(bytes_).substr(tokens_[static_cast<size_t>(id)].offset,
                                           tokens_[static_cast<size_t>(id)].length);
  }
  std::span<const int32_t> stop_ids() const { return stop_ids_; }
  bool is_stop(int32_t id) const;

  const Trie& slice(size_t s) const { return slices_[s]; }
  const Trie& others() const { return others_; }
  // The tokens of the first `count` slices, 1 to kSlices.size(), as a mask.
  const std::vector<uint64_t>& plain(size_t count) const { return plain_[count - 1]; }
  size_t longest() const { return longest_; }  // bytes of the longest token

  // <tool_call> and </tool_call>, where the tokenizer has them.
  std::optional<int32_t> tool_call, tool_call_end;

 private:
  struct Range {
    uint32_t offset = 0, length = 0;
  };
  std::string bytes_;
  std::vector<Range> tokens_;
  std::vector<int32_t> stop_ids_;
  std::array<Trie, kSlices.size()> slices_;
  Trie others_;
  std::array<std::vector<uint64_t>, kSlices.size()> plain_;
  size_t longest_ = 0;
};

}  // namespace calla
