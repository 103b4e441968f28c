#include "grammar/regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "text/unicode.h"
#include "text/utf8.h"

namespace calla {
namespace {

constexpr size_t kMaxPattern = 4096, kMaxNfa = 20'000, kMaxWork = 4'000'000;
constexpr int kMaxDepth = 64;
constexpr uint32_t kMaxCount = 1000, kUnbounded = ~uint32_t{0};

struct Expr {
  enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat, kStart, kEnd };
  Kind kind = Kind::kSequence;
  CharSet set;
  std::vector<Expr> parts;
  uint32_t min = 0, max = 0;
};

CharSet digits() {
  return {{'0', '9'}};
}
CharSet word() {
  return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
}
CharSet space() {
  return {{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
          {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
}
CharSet line_ends() {
  return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
}

CharSet of_class(CharClass c) {
  CharSet out;
  for (uint32_t i = 0; i <= kMaxCharacter; ++i) {
    if (char_class(i) != c) continue;
    const uint32_t first = i;
    while (i < kMaxCharacter && char_class(i + 1) == c) ++i;
    out.emplace_back(first, i);
  }
  return out;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Expr> run() {
    CALLA_ASSIGN(Expr e, choice(0));
    if (!at_end()) return error("an unexpected )");
    return e;
  }

 private:
  bool at_end() const { return at_ == text_.size(); }
  bool looking_at(std::string_view s) const { return text_.substr(at_).starts_with(s); }
  bool take(std::string_view s) {
    if (!looking_at(s)) return false;
    at_ += s.size();
    return true;
  }
  uint32_t character() {
    const uint32_t c = utf8_at(text_.data() + at_);
    at_ += utf8_length(text_[at_]);
    return c;
  }
  tl::unexpected<Error> error(std::string_view what) const { return invalid(fmt::format("{} at byte {}", what, at_)); }

  Result<Expr> choice(int depth) {
    if (depth > kMaxDepth) return error("groups nested too deep");
    Expr out{Expr::Kind::kChoice};
    do {
      CALLA_ASSIGN(Expr e, sequence(depth));
      out.parts.push_back(std::move(e));
    } while (take("|"));
    if (out.parts.size() == 1) return std::move(out.parts[0]);
    return out;
  }

  Result<Expr> sequence(int depth) {
    Expr out{Expr::Kind::kSequence};
    while (!at_end() && !looking_at("|") && !looking_at(")")) {
      CALLA_ASSIGN(Expr e, atom(depth));
      CALLA_TRY(quantified(e));
      out.parts.push_back(std::move(e));
    }
    return out;
  }

  Result<void> quantified(Expr& e) {
    uint32_t min = 0, max = kUnbounded;
    if (take("*")) {
    } else if (take("+")) {
      min = 1;
    } else if (take("?")) {
      max = 1;
    } else if (take("{")) {
      CALLA_ASSIGN(min, count());
      max = min;
      if (take(",")) {
        max = kUnbounded;
        if (!looking_at("}")) {
          CALLA_ASSIGN(max, count());
        }
      }
      if (!take("}")) return error("a { without its }");
      if (min > max) return error("a count that ends before it begins");
    } else {
      return {};
    }
    if (e.kind == Expr::Kind::kStart || e.kind == Expr::Kind::kEnd) return error("nothing to repeat");
    take("?");
    if (looking_at("*") || looking_at("+") || looking_at("?") || looking_at("{")) return error("nothing to repeat");
    Expr out{Expr::Kind::kRepeat};
    out.parts.push_back(std::move(e));
    out.min = min;
    out.max = max;
    e = std::move(out);
    return {};
  }

  Result<uint32_t> count() {
    uint32_t n = 0;
    const size_t first = at_;
    while (!at_end() && text_[at_] >= '0' && text_[at_] <= '9') {
      n = n * 10 + static_cast<uint32_t>(text_[at_++] - '0');
      if (n > kMaxCount) return error(fmt::format("a count above {}", kMaxCount));
    }
    if (at_ == first) return error("a count without digits");
    return n;
  }

  Result<Expr> atom(int depth) {
    if (take("(")) {
      if (looking_at("?=") || looking_at("?!") || looking_at("?<=") || looking_at("?<!")) {
        return error("look-around is not supported:");
      }
      if (take("?<")) {
        while (!at_end() && text_[at_] != '>') ++at_;
        if (!take(">")) return error("a group's name without its >");
      } else if (looking_at("?") && !take("?:")) {
        return error("an unknown group");
      }
      CALLA_ASSIGN(Expr e, choice(depth + 1));
      if (!take(")")) return error("a ( without its )");
      return e;
    }
    if (take("[")) return bracket();
    if (take("^")) return Expr{Expr::Kind::kStart};
    if (take("$")) return Expr{Expr::Kind::kEnd};
    if (take(".")) return set(complement(line_ends()));
    if (take("\\")) {
      CALLA_ASSIGN(CharSet s, escape(false));
      return set(std::move(s));
    }
    if (looking_at("*") || looking_at("+") || looking_at("?") || looking_at("{")) return error("nothing to repeat");
    const uint32_t c = character();
    return set({{c, c}});
  }

  static Expr set(CharSet s) {
    Expr e{Expr::Kind::kSet};
    e.set = normalized(std::move(s));
    return e;
  }

  // After the backslash.
  Result<CharSet> escape(bool in_class) {
    if (at_end()) return error("a \\ at the end");
    const auto one = [](uint32_t c) { return CharSet{{c, c}}; };
    const uint32_t c = character();
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return complement(digits());
      case 'w':
        return word();
      case 'W':
        return complement(word());
      case 's':
        return space();
      case 'S':
        return complement(space());
      case 'n':
        return one('\n');
      case 't':
        return one('\t');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'b':
        if (in_class) return one('\b');
        [[fallthrough]];
      case 'B':
        return error("word boundaries are not supported:");
      case 'c':
        if (at_end() || !((text_[at_] | 0x20) >= 'a' && (text_[at_] | 0x20) <= 'z'))
          return error("\\c without a letter");
        return one(static_cast<uint32_t>(text_[at_++] & 0x1f));
      case 'p':
      case 'P': {
        CALLA_ASSIGN(CharSet s, property());
        return c == 'p' ? s : complement(s);
      }
      case 'k':
        return error("back references are not supported:");
      case 'x':
        return hex(2);
      case 'u': {
        if (take("{")) {
          uint32_t value = 0;
          const size_t first = at_;
          while (!at_end() && digit(text_[at_]) && value <= kMaxCharacter) value = value * 16 + *digit(text_[at_++]);
          if (at_ == first || value > kMaxCharacter || !take("}")) return error("\\u{ without a character and }");
          return one(value);
        }
        CALLA_ASSIGN(CharSet s, hex(4));
        const uint32_t high = s[0].first;
        if (high < 0xd800 || high > 0xdbff || !take("\\u")) return s;
        CALLA_ASSIGN(const CharSet low, hex(4));
        if (low[0].first < 0xdc00 || low[0].first > 0xdfff) return error("half a surrogate pair");
        return one(0x10000 + ((high - 0xd800) << 10) + (low[0].first - 0xdc00));
      }
      default:
        if (c == '0' && (at_end() || text_[at_] < '0' || text_[at_] > '9')) return one(0);
        if (c >= '0' && c <= '9') return error("back references are not supported:");
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z' && c < 0x80) return error("an unknown escape");
        return one(c);
    }
  }

  static std::optional<uint32_t> digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return std::nullopt;
  }
  Result<CharSet> hex(int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) {
      if (at_end() || !digit(text_[at_])) return error(fmt::format("an escape without {} hexadecimal digits", count));
      value = value * 16 + *digit(text_[at_++]);
    }
    return CharSet{{value, value}};
  }

  Result<CharSet> property() {
    if (take("{")) {
      for (const auto& [names, c] : {std::pair{std::pair{"L}", "Letter}"}, CharClass::kLetter},
                                     {{"M}", "Mark}"}, CharClass::kMark},
                                     {{"N}", "Number}"}, CharClass::kNumber}}) {
        if (take(names.first) || take(names.second)) return of_class(c);
      }
    }
    return error("only the properties L, M and N are supported:");
  }

  Result<Expr> bracket() {
    const bool negated = take("^");
    CharSet out;
    while (!take("]")) {
      CALLA_ASSIGN(CharSet first, member());
      if (looking_at("-") && !text_.substr(at_).starts_with("-]")) {
        take("-");
        CALLA_ASSIGN(const CharSet last, member());
        if (!single(first) || !single(last)) return error("a range between classes");
        if (first[0].first > last[0].first) return error("a range that ends before it begins");
        out.emplace_back(first[0].first, last[0].first);
      } else {
        out.insert(out.end(), first.begin(), first.end());
      }
    }
    out = normalized(std::move(out));
    return set(negated ? complement(out) : std::move(out));
  }
  static bool single(const CharSet& s) { return s.size() == 1 && s[0].first == s[0].second; }
  Result<CharSet> member() {
    if (at_end()) return error("a [ without its ]");
    if (take("\\")) {
      if (take("-")) return CharSet{{'-', '-'}};
      return escape(true);
    }
    const uint32_t c = character();
    return CharSet{{c, c}};
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Thompson's construction.
struct Nfa {
  enum class Kind : uint8_t { kSet, kSplit, kStart, kEnd, kAccept };
  struct State {
    Kind kind = Kind::kSplit;
    const CharSet* set = nullptr;
    std::vector<uint32_t> to;
  };
  std::vector<State> states;

  uint32_t add(Kind kind, std::vector<uint32_t> to, const CharSet* set = nullptr) {
    states.push_back({kind, set, std::move(to)});
    return static_cast<uint32_t>(states.size() - 1);
  }
  bool full() const { return states.size() > kMaxNfa; }

  // From back to front.
  uint32_t build(const Expr& e, uint32_t next) {
    if (full()) return next;
    switch (e.kind) {
      case Expr::Kind::kSet:
        return add(Kind::kSet, {next}, &e.set);
      case Expr::Kind::kSequence:
        for (size_t i = e.parts.size(); i-- > 0;) next = build(e.parts[i], next);
        return next;
      case Expr::Kind::kChoice: {
        std::vector<uint32_t> ways;
        for (const Expr& part : e.parts) ways.push_back(build(part, next));
        return add(Kind::kSplit, std::move(ways));
      }
      case Expr::Kind::kRepeat:
        if (e.max == kUnbounded) {
          const uint32_t loop = add(Kind::kSplit, {next});
          const uint32_t round = build(e.parts[0], loop);
          states[loop].to.push_back(round);
          next = loop;
        } else {
          const uint32_t end = next;
          for (uint32_t i = e.min; i < e.max && !full(); ++i) {
            const uint32_t round = build(e.parts[0], next);
            next = add(Kind::kSplit, {round, end});
          }
        }
        for (uint32_t i = 0; i < e.min && !full(); ++i) {
          const uint32_t round = build(e.parts[0], next);
          if (round == next) break;  // nothing, repeated
          next = round;
        }
        return next;
      case Expr::Kind::kStart:
        return add(Kind::kStart, {next});
      case Expr::Kind::kEnd:
        return add(Kind::kEnd, {next});
    }
    return next;
  }
};

// Subset construction. The work is counted, so that a hostile pattern costs bounded time.
class Subsets {
 public:
  explicit Subsets(const Nfa& nfa) : nfa_(nfa), seen_(nfa.states.size()) {}

  Result<CharDfa> run(uint32_t start) {
    std::vector<uint32_t> first{start};
    close(first, true);
    name(std::move(first));
    CharDfa out;
    size_t edges = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      const std::vector<uint32_t> set = *order_[i];
      CharDfa::State state;
      state.accepts = accepts(set, false);
      // Where the set of the characters' targets changes.
      std::vector<uint32_t> cuts;
      for (const uint32_t s : set) {
        if (nfa_.states[s].kind != Nfa::Kind::kSet) continue;
        for (const auto& [lo, hi] : *nfa_.states[s].set) {
          cuts.push_back(lo);
          cuts.push_back(hi + 1);
        }
      }
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      for (size_t c = 0; c + 1 < cuts.size(); ++c) {
        std::vector<uint32_t> to;
        for (const uint32_t s : set) {
          if (nfa_.states[s].kind == Nfa::Kind::kSet && contains(*nfa_.states[s].set, cuts[c])) {
            to.push_back(nfa_.states[s].to[0]);
          }
        }
        work_ += set.size();
        if (to.empty()) continue;
        close(to, false);
        state.edges.push_back({cuts[c], cuts[c + 1] - 1, name(std::move(to))});
      }
      edges += state.edges.size();
      if (order_.size() > CharDfa::kMaxStates || edges > CharDfa::kMaxEdges || work_ > kMaxWork) {
        return invalid(fmt::format("needs an automaton of more than {} states", CharDfa::kMaxStates));
      }
      out.states.push_back(std::move(state));
    }
    if (!out.states[0].accepts && accepts({start}, true)) {
      // Of the empty text only, as ^ after $: the start is a state of its own.
      const auto copy = static_cast<uint32_t>(out.states.size());
      out.states.push_back(out.states[0]);
      for (CharDfa::State& state : out.states) {
        for (CharDfa::Edge& e : state.edges) e.to = e.to == 0 ? copy : e.to;
      }
      out.states[0].accepts = true;
    }
    return trimmed(std::move(out));
  }

 private:
  static bool contains(const CharSet& set, uint32_t c) {
    const auto after = std::upper_bound(set.begin(), set.end(), std::pair{c, ~uint32_t{0}});
    return after != set.begin() && std::prev(after)->second >= c;
  }

  // What can be reached without reading. ^ is open only at the start of the text.
  void close(std::vector<uint32_t>& set, bool at_start) {
    for (const uint32_t s : set) seen_[s] = false;
    std::vector<uint32_t> out, work = std::move(set);
    while (!work.empty()) {
      const uint32_t s = work.back();
      work.pop_back();
      if (seen_[s]) continue;
      seen_[s] = true;
      ++work_;
      const Nfa::State& state = nfa_.states[s];
      out.push_back(s);
      if (state.kind == Nfa::Kind::kSplit || (state.kind == Nfa::Kind::kStart && at_start)) {
        work.insert(work.end(), state.to.begin(), state.to.end());
      }
    }
    for (const uint32_t s : out) seen_[s] = false;
    // Only what reads, ends or waits for the end tells sets apart.
    std::erase_if(out, [&](uint32_t s) {
      const auto kind = nfa_.states[s].kind;
      return kind == Nfa::Kind::kSplit || kind == Nfa::Kind::kStart;
    });
    std::sort(out.begin(), out.end());
    set = std::move(out);
  }

  // Whether the text may end here: $ is open, and ^ at the start.
  bool accepts(const std::vector<uint32_t>& set, bool at_start) {
    std::vector<uint32_t> work(set), visited;
    bool found = false;
    while (!work.empty()) {
      const uint32_t s = work.back();
      work.pop_back();
      if (seen_[s]) continue;
      seen_[s] = true;
      visited.push_back(s);
      ++work_;
      const Nfa::State& state = nfa_.states[s];
      found |= state.kind == Nfa::Kind::kAccept;
      if (state.kind == Nfa::Kind::kSplit || state.kind == Nfa::Kind::kEnd ||
          (state.kind == Nfa::Kind::kStart && at_start)) {
        work.insert(work.end(), state.to.begin(), state.to.end());
      }
    }
    for (const uint32_t s : visited) seen_[s] = false;
    return found;
  }

  uint32_t name(std::vector<uint32_t> set) {
    const auto [it, is_new] = names_.try_emplace(std::move(set), static_cast<uint32_t>(order_.size()));
    if (is_new) order_.push_back(&it->first);
    return it->second;
  }

  const Nfa& nfa_;
  std::vector<char> seen_;
  std::map<std::vector<uint32_t>, uint32_t> names_;
  std::vector<const std::vector<uint32_t>*> order_;
  size_t work_ = 0;
};

}  // namespace

Result<CharDfa> regex_dfa(std::string_view pattern) {
  if (pattern.size() > kMaxPattern) return invalid(fmt::format("is longer than {} bytes", kMaxPattern));
  if (!valid_utf8(pattern)) return invalid("is not UTF-8");
  CALLA_ASSIGN(const Expr e, Parser(pattern).run());
  // The pattern may match anywhere: what stands before and after is free.
  const CharSet any{{0, kMaxCharacter}};
  Nfa nfa;
  const uint32_t accept = nfa.add(Nfa::Kind::kAccept, {});
  const auto free_before = [&](uint32_t next) {
    const uint32_t loop = nfa.add(Nfa::Kind::kSplit, {next});
    const uint32_t round = nfa.add(Nfa::Kind::kSet, {loop}, &any);
    nfa.states[loop].to.push_back(round);
    return loop;
  };
  const uint32_t before = free_before(nfa.build(e, free_before(accept)));
  if (nfa.full()) return invalid(fmt::format("needs an automaton of more than {} parts", kMaxNfa));
  return Subsets(nfa).run(before);
}

}  // namespace calla
