#include "grammar/char_dfa.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "text/utf8.h"

namespace calla {
namespace {

tl::unexpected<Error> too_large() {
  return invalid(fmt::format("needs an automaton of more than {} states", CharDfa::kMaxStates));
}

}  // namespace

CharSet normalized(CharSet set) {
  std::sort(set.begin(), set.end());
  CharSet out;
  for (const auto& [lo, hi] : set) {
    if (!out.empty() && lo <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, hi);
    } else {
      out.emplace_back(lo, hi);
    }
  }
  return out;
}

CharSet complement(const CharSet& set) {
  CharSet out;
  uint32_t next = 0;
  for (const auto& [lo, hi] : set) {
    if (lo > next) out.emplace_back(next, lo - 1);
    next = hi + 1;
  }
  if (next <= kMaxCharacter) out.emplace_back(next, kMaxCharacter);
  return out;
}

CharDfa trimmed(CharDfa dfa) {
  const size_t n = dfa.states.size();
  std::vector<std::vector<uint32_t>> from(n);
  for (uint32_t s = 0; s < n; ++s) {
    for (const auto& e : dfa.states[s].edges) from[e.to].push_back(s);
  }
  std::vector<bool> alive(n);
  std::vector<uint32_t> work;
  for (uint32_t s = 0; s < n; ++s) {
    if (dfa.states[s].accepts) work.push_back(s);
  }
  while (!work.empty()) {
    const uint32_t s = work.back();
    work.pop_back();
    if (alive[s]) continue;
    alive[s] = true;
    work.insert(work.end(), from[s].begin(), from[s].end());
  }
  CharDfa out;
  if (n == 0 || !alive[0]) {
    out.states.resize(1);
    return out;
  }
  constexpr uint32_t kNone = ~uint32_t{0};
  std::vector<uint32_t> names(n, kNone), order{0};
  names[0] = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    CharDfa::State state{{}, dfa.states[order[i]].accepts};
    for (const auto& e : dfa.states[order[i]].edges) {
      if (!alive[e.to]) continue;
      if (names[e.to] == kNone) {
        names[e.to] = static_cast<uint32_t>(order.size());
        order.push_back(e.to);
      }
      if (!state.edges.empty() && state.edges.back().to == names[e.to] && state.edges.back().hi + 1 == e.lo) {
        state.edges.back().hi = e.hi;
      } else {
        state.edges.push_back({e.lo, e.hi, names[e.to]});
      }
    }
    out.states.push_back(std::move(state));
  }
  return out;
}

Result<CharDfa> length_dfa(uint32_t min, uint32_t max) {
  const uint32_t last = max == kAnyLength ? min : max;
  if (last >= CharDfa::kMaxStates) return too_large();
  CharDfa dfa;
  dfa.states.resize(last + 1);
  for (uint32_t n = 0; n <= last; ++n) {
    dfa.states[n].accepts = n >= min;
    if (n < last || max == kAnyLength) dfa.states[n].edges = {{0, kMaxCharacter, std::min(n + 1, last)}};
  }
  return trimmed(std::move(dfa));
}

CharDfa without_words(std::initializer_list<std::string_view> words) {
  // A trie in which every other character leads back to the start, or to the first letter.
  std::vector<std::map<uint32_t, uint32_t>> trie(1);
  std::vector<bool> whole(1);
  uint32_t letter = 0;
  for (const std::string_view word : words) {
    uint32_t at = 0;
    letter = utf8_at(word.data());
    for (size_t i = 0; i < word.size(); i += utf8_length(word[i])) {
      const auto [next, is_new] = trie[at].try_emplace(utf8_at(word.data() + i), static_cast<uint32_t>(trie.size()));
      at = next->second;
      if (!is_new) continue;
      trie.emplace_back();
      whole.push_back(false);
    }
    whole[at] = true;
  }
  CharDfa dfa;
  dfa.states.resize(trie.size());
  const uint32_t first = trie[0].at(letter);
  for (uint32_t s = 0; s < trie.size(); ++s) {
    if (whole[s]) continue;  // neither accepts nor leads on: trimmed away
    dfa.states[s].accepts = true;
    auto ways = trie[s];
    ways.try_emplace(letter, first);
    uint32_t next = 0;
    for (const auto& [c, to] : ways) {
      if (c > next) dfa.states[s].edges.push_back({next, c - 1, 0});
      dfa.states[s].edges.push_back({c, c, to});
      next = c + 1;
    }
    dfa.states[s].edges.push_back({next, kMaxCharacter, 0});
  }
  return trimmed(std::move(dfa));
}

Result<CharDfa> other_than(const std::vector<std::string_view>& texts) {
  std::vector<std::map<uint32_t, uint32_t>> trie(2);
  std::vector<bool> whole(2);
  constexpr uint32_t kOther = 1;  // differs from all
  for (const std::string_view text : texts) {
    uint32_t at = 0;
    for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
      const auto [next, is_new] = trie[at].try_emplace(utf8_at(text.data() + i), static_cast<uint32_t>(trie.size()));
      at = next->second;
      if (!is_new) continue;
      if (trie.size() >= CharDfa::kMaxStates) return too_large();
      trie.emplace_back();
      whole.push_back(false);
    }
    whole[at] = true;
  }
  CharDfa dfa;
  dfa.states.resize(trie.size());
  for (uint32_t s = 0; s < trie.size(); ++s) {
    dfa.states[s].accepts = !whole[s];
    uint32_t next = 0;
    for (const auto& [c, to] : trie[s]) {
      if (c > next) dfa.states[s].edges.push_back({next, c - 1, kOther});
      dfa.states[s].edges.push_back({c, c, to});
      next = c + 1;
    }
    dfa.states[s].edges.push_back({next, kMaxCharacter, kOther});
  }
  return trimmed(std::move(dfa));
}

Result<CharDfa> intersect(const CharDfa& a, const CharDfa& b) {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> names{{{0, 0}, 0}};
  std::vector<std::pair<uint32_t, uint32_t>> order{{0, 0}};
  CharDfa out;
  size_t edges = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& x = a.states[order[i].first];
    const auto& y = b.states[order[i].second];
    CharDfa::State state{{}, x.accepts && y.accepts};
    for (size_t j = 0, k = 0; j < x.edges.size() && k < y.edges.size();) {
      const auto& e = x.edges[j];
      const auto& f = y.edges[k];
      const uint32_t lo = std::max(e.lo, f.lo), hi = std::min(e.hi, f.hi);
      if (lo <= hi) {
        const auto [it, is_new] = names.try_emplace({e.to, f.to}, static_cast<uint32_t>(order.size()));
        if (is_new) order.emplace_back(e.to, f.to);
        state.edges.push_back({lo, hi, it->second});
      }
      ++(e.hi < f.hi ? j : k);
    }
    edges += state.edges.size();
    if (order.size() > CharDfa::kMaxStates || edges > CharDfa::kMaxEdges) return too_large();
    out.states.push_back(std::move(state));
  }
  return trimmed(std::move(out));
}

}  // namespace calla
