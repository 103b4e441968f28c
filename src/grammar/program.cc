#include "grammar/program.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "text/utf8.h"

namespace calla {
namespace {

using Kind = GrammarNode::Kind;

// The heights of all nodes: a least fixed point, rule by rule.
class Heights {
 public:
  explicit Heights(GrammarProgram& program) : p_(program), callers_(program.rules.size()) {
    p_.heights.assign(p_.nodes.size(), GrammarProgram::kNever);
    for (uint32_t r = 0; r < p_.rules.size(); ++r) {
      for (uint32_t i = p_.rules[r].begin; i < p_.rules[r].end; ++i) {
        if (p_.nodes[i].kind == Kind::kCall) callers_[p_.nodes[i].arg].push_back(r);
      }
    }
  }

  void run() {
    std::vector<uint32_t> work;
    std::vector<bool> waiting(p_.rules.size(), true);
    for (uint32_t r = 0; r < p_.rules.size(); ++r) work.push_back(r);
    while (!work.empty()) {
      const uint32_t r = work.back();
      work.pop_back();
      waiting[r] = false;
      const uint8_t before = p_.heights[p_.rules[r].entry];
      settle(p_.rules[r]);
      if (p_.heights[p_.rules[r].entry] == before) continue;
      for (const uint32_t caller : callers_[r]) {
        if (!waiting[caller]) work.push_back(caller);
        waiting[caller] = true;
      }
    }
  }

 private:
  // Nodes are written from back to front, so that one pass settles all but cycles.
  void settle(const GrammarProgram::Rule& rule) {
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t i = rule.begin; i < rule.end; ++i) changed |= lower(i);
      if (!changed) return;
      changed = false;
      for (uint32_t i = rule.end; i-- > rule.begin;) changed |= lower(i);
    }
  }

  bool lower(uint32_t i) {
    const uint8_t h = height(p_.nodes[i]);
    if (h >= p_.heights[i]) return false;
    p_.heights[i] = h;
    return true;
  }

  uint8_t height(const GrammarNode& n) const {
    const auto& h = p_.heights;
    uint8_t best = GrammarProgram::kNever;
    switch (n.kind) {
      case Kind::kBytes:
        for (uint32_t e = n.first; e < n.first + n.count; ++e) best = std::min(best, h[p_.edges[e].to]);
        return best;
      case Kind::kSplit:
        for (uint32_t t = n.first; t < n.first + n.count; ++t) best = std::min(best, h[p_.targets[t]]);
        return best;
      case Kind::kControl:
      case Kind::kEnter:
        return h[n.to];
      case Kind::kCall: {
        const auto& rule = p_.rules[n.arg];
        const int inside = h[rule.entry] + (rule.container ? 1 : 0);
        if (inside > GrammarProgram::kMaxNesting) return GrammarProgram::kNever;
        return std::max(static_cast<uint8_t>(inside), h[n.to]);
      }
      case Kind::kReturn:
      case Kind::kAgain:  // the way out of a loop was open when the loop was entered, at the same depth
        return 0;
      case Kind::kLoop:
        if (n.max == 0) return h[n.to];
        return n.min > 0 ? std::max(h[n.arg], h[n.to]) : h[n.to];
    }
    return best;
  }

  GrammarProgram& p_;
  std::vector<std::vector<uint32_t>> callers_;
};

// The rules that a rule calls before it reads anything.
std::vector<uint32_t> called_first(const GrammarProgram& p, const GrammarProgram::Rule& rule) {
  std::vector<uint32_t> calls, work{rule.entry};
  std::vector<bool> seen(rule.end - rule.begin);
  while (!work.empty()) {
    const uint32_t i = work.back();
    work.pop_back();
    if (seen[i - rule.begin]) continue;
    seen[i - rule.begin] = true;
    const GrammarNode& n = p.nodes[i];
    switch (n.kind) {
      case Kind::kSplit:
        work.insert(work.end(), p.targets.begin() + n.first, p.targets.begin() + n.first + n.count);
        break;
      case Kind::kCall:
        calls.push_back(n.arg);
        if (p.rules[n.arg].nullable) work.push_back(n.to);
        break;
      case Kind::kEnter:
      case Kind::kAgain:
        work.push_back(n.to);
        break;
      case Kind::kLoop:
        work.push_back(n.to);
        work.push_back(n.arg);
        break;
      case Kind::kBytes:
      case Kind::kControl:
      case Kind::kReturn:
        break;
    }
  }
  return calls;
}

// A rule that calls itself, through others or not, before it reads anything: the machine would never come to rest.
std::optional<uint32_t> left_recursive(const GrammarProgram& p) {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(p.rules.size());
  struct Visit {
    uint32_t rule;
    std::vector<uint32_t> calls;
  };
  for (uint32_t r = 0; r < p.rules.size(); ++r) {
    if (marks[r] != Mark::kNew) continue;
    std::vector<Visit> path;
    path.push_back({r, called_first(p, p.rules[r])});
    marks[r] = Mark::kOpen;
    while (!path.empty()) {
      if (path.back().calls.empty()) {
        marks[path.back().rule] = Mark::kDone;
        path.pop_back();
        continue;
      }
      const uint32_t next = path.back().calls.back();
      path.back().calls.pop_back();
      if (marks[next] == Mark::kOpen) return next;
      if (marks[next] == Mark::kDone) continue;
      marks[next] = Mark::kOpen;
      path.push_back({next, called_first(p, p.rules[next])});
    }
  }
  return std::nullopt;
}

}  // namespace

uint32_t ProgramBuilder::add(GrammarNode n) {
  if (full()) return 0;
  program_.nodes.push_back(n);
  return static_cast<uint32_t>(program_.nodes.size() - 1);
}

uint32_t ProgramBuilder::add_rule(std::string name, bool container, bool nullable) {
  program_.rules.push_back({.container = container, .nullable = nullable, .name = std::move(name)});
  return static_cast<uint32_t>(program_.rules.size() - 1);
}

void ProgramBuilder::begin_rule(uint32_t rule) {
  program_.rules[rule].begin = static_cast<uint32_t>(program_.nodes.size());
  tails_.clear();
}

void ProgramBuilder::end_rule(uint32_t rule, uint32_t entry) {
  program_.rules[rule].entry = entry;
  program_.rules[rule].end = static_cast<uint32_t>(program_.nodes.size());
}

uint32_t ProgramBuilder::bytes(const std::vector<ByteEdge>& edges, GrammarNode::Run run) {
  if (full()) return 0;
  const auto first = static_cast<uint32_t>(program_.edges.size());
  program_.edges.insert(program_.edges.end(), edges.begin(), edges.end());
  return add({.kind = Kind::kBytes, .first = first, .count = static_cast<uint32_t>(edges.size()), .run = run});
}

uint32_t ProgramBuilder::literal(std::string_view text, uint32_t next) {
  for (size_t i = text.size(); i-- > 0 && !full();) {
    const auto b = static_cast<uint8_t>(text[i]);
    next = byte_range(b, b, next);
  }
  return next;
}

uint32_t ProgramBuilder::words(std::vector<std::string> texts, uint32_t next) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return words(texts.data(), texts.data() + texts.size(), 0, next);
}

// The texts of [first, last), sorted, which agree in `depth` bytes.
uint32_t ProgramBuilder::words(const std::string* first, const std::string* last, size_t depth, uint32_t next) {
  if (first == last) return dead();
  if (first + 1 == last) return literal(std::string_view(*first).substr(depth), next);
  // What all share is a chain, so that recursion is no deeper than the texts branch.
  size_t shared = depth;
  while (shared < first->size() && (*first)[shared] == (*(last - 1))[shared]) ++shared;
  std::vector<uint32_t> ways;
  const std::string* rest = first;
  if (first->size() == shared) {
    ways.push_back(next);
    ++rest;
  }
  std::vector<ByteEdge> edges;
  while (rest != last) {
    const char c = (*rest)[shared];
    const std::string* end = rest;
    while (end != last && (*end)[shared] == c) ++end;
    const auto b = static_cast<uint8_t>(c);
    edges.push_back({b, b, words(rest, end, shared + 1, next)});
    rest = end;
  }
  if (!edges.empty()) ways.push_back(bytes(edges));
  return literal(std::string_view(*first).substr(depth, shared - depth), split(ways));
}

uint32_t ProgramBuilder::control(int32_t id, uint32_t next) {
  return add({.kind = Kind::kControl, .to = next, .arg = static_cast<uint32_t>(id)});
}

uint32_t ProgramBuilder::split(const std::vector<uint32_t>& ways) {
  if (ways.size() == 1) return ways[0];
  const uint32_t node = reserve();
  set_split(node, ways);
  return node;
}

uint32_t ProgramBuilder::reserve() {
  return add({.kind = Kind::kSplit});
}

void ProgramBuilder::set_split(uint32_t i, const std::vector<uint32_t>& ways) {
  if (full()) return;
  node(i).first = static_cast<uint32_t>(program_.targets.size());
  node(i).count = static_cast<uint32_t>(ways.size());
  program_.targets.insert(program_.targets.end(), ways.begin(), ways.end());
}

uint32_t ProgramBuilder::call(uint32_t rule, uint32_t next) {
  return add({.kind = Kind::kCall, .to = next, .arg = rule});
}

uint32_t ProgramBuilder::ends() {
  return add({.kind = Kind::kReturn});
}

uint32_t ProgramBuilder::loop(uint32_t min, uint32_t max, uint32_t next) {
  return add({.kind = Kind::kLoop, .to = next, .min = min, .max = max});
}

uint32_t ProgramBuilder::enter(uint32_t loop) {
  return add({.kind = Kind::kEnter, .to = loop});
}

uint32_t ProgramBuilder::again(uint32_t loop) {
  return add({.kind = Kind::kAgain, .to = loop});
}

uint32_t ProgramBuilder::repeat(uint32_t min, uint32_t max, const std::function<uint32_t(uint32_t)>& body,
                                uint32_t next) {
  if (full()) return 0;
  if (min == 0 && max == GrammarProgram::kEndless) {
    const uint32_t here = reserve();
    const uint32_t round = body(here);
    set_split(here, {round, next});
    return here;
  }
  const uint32_t l = loop(min, max, next);
  set_loop_body(l, body(again(l)));
  return enter(l);
}

void ProgramBuilder::add_characters(std::vector<ByteEdge>& edges, uint32_t lo, uint32_t hi, uint32_t next) {
  if (lo > hi || full()) return;
  // Cut where the encoded length changes, around the surrogates, and where the last bytes are not all possible.
  for (const uint32_t last : {0x7fu, 0x7ffu, 0xd7ffu, 0xdfffu, 0xffffu}) {
    if (lo > last || hi <= last) continue;
    add_characters(edges, lo, last, next);
    add_characters(edges, last + 1, hi, next);
    return;
  }
  if (lo >= 0xd800 && hi <= 0xdfff) return;
  for (int bits = 6; bits <= 18; bits += 6) {
    const uint32_t mask = (1u << bits) - 1;
    if ((lo & ~mask) == (hi & ~mask)) break;
    uint32_t cut = 0;
    if ((lo & mask) != 0)
      cut = (lo | mask) + 1;
    else if ((hi & mask) != mask)
      cut = hi & ~mask;
    if (cut == 0) continue;
    add_characters(edges, lo, cut - 1, next);
    add_characters(edges, cut, hi, next);
    return;
  }
  std::string first, last;
  append_utf8(lo, first);
  append_utf8(hi, last);
  for (size_t i = first.size(); --i > 0;) {
    const auto a = static_cast<uint8_t>(first[i]), b = static_cast<uint8_t>(last[i]);
    uint32_t& tail = tails_.try_emplace({a, b, next}, GrammarProgram::kEndless).first->second;
    if (tail == GrammarProgram::kEndless) tail = byte_range(a, b, next);
    next = tail;
  }
  edges.push_back({static_cast<uint8_t>(first[0]), static_cast<uint8_t>(last[0]), next});
}

std::string ProgramBuilder::finish(GrammarProgram& out) {
  if (const auto rule = left_recursive(program_)) return program_.rules[*rule].name;
  out = std::move(program_);
  Heights(out).run();
  return {};
}

}  // namespace calla
