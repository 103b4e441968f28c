#pragma once

// Finite automata over characters (Unicode scalar values): what patterns, formats and lengths come down to.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace calla {

inline constexpr uint32_t kMaxCharacter = 0x10ffff;

// Sorted, disjoint ranges of characters, both ends included.
using CharSet = std::vector<std::pair<uint32_t, uint32_t>>;
CharSet normalized(CharSet set);
CharSet complement(const CharSet& set);  // REQUIRES: normalized

// Deterministic; state 0 is the start. From every state an accepting one can be reached, except that an automaton that
// accepts nothing has one state without edges.
struct CharDfa {
  // Larger ones are refused as too large.
  static constexpr size_t kMaxStates = 4096, kMaxEdges = 1 << 17;

  struct Edge {
    uint32_t lo, hi, to;
  };
  struct State {
    std::vector<Edge> edges;  // sorted, disjoint
    bool accepts = false;
  };
  std::vector<State> states;

  bool empty() const { return states.size() == 1 && !states[0].accepts && states[0].edges.empty(); }
};

// Texts of min to max characters; max kAnyLength: no limit. An error if the automaton would be too large.
inline constexpr uint32_t kAnyLength = ~uint32_t{0};
Result<CharDfa> length_dfa(uint32_t min, uint32_t max);
// Texts in which none of the words occurs. REQUIRES: each begins with the same character, which occurs nowhere else in
// any of them, and none is empty.
CharDfa without_words(std::initializer_list<std::string_view> words);
// All texts but these, in UTF-8.
Result<CharDfa> other_than(const std::vector<std::string_view>& texts);
// Texts that both accept. An error if the result would be too large.
Result<CharDfa> intersect(const CharDfa& a, const CharDfa& b);
// Drops the states from which nothing can be accepted or that cannot be reached.
CharDfa trimmed(CharDfa dfa);

}  // namespace calla
