#include "grammar/automaton.h"

#include <algorithm>

#include "base/check.h"

namespace calla {
namespace {

using Kind = GrammarNode::Kind;

uint64_t mixed(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

}  // namespace

GrammarAutomaton::GrammarAutomaton(const GrammarProgram& program, const GrammarVocabulary& vocabulary)
    : program_(&program), vocabulary_(&vocabulary), seen_(256) {
  stacks_.push_back({});
  settle();  // the dead state
  CHECK(states_.size() == 1 && !states_[kDead].ends, "the first state is the dead one");
  rows_[kDead].fill(kDead);
}

uint32_t GrammarAutomaton::start() {
  reach(program_->rules[0].entry, kEmpty);
  return settle();
}

uint32_t GrammarAutomaton::push(const Stack& frame) {
  const uint64_t hash = mixed(mixed(frame.below, frame.node), uint64_t{frame.count} << 32 | frame.depth);
  const auto [first, last] = stack_index_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (stacks_[it->second] == frame) return it->second;
  }
  const auto id = static_cast<uint32_t>(stacks_.size());
  stacks_.push_back(frame);
  stack_index_.emplace(hash, id);
  return id;
}

bool GrammarAutomaton::first_time(Thread t) {
  if (seen_count_ * 2 >= seen_.size()) {
    std::vector<Seen> old(seen_.size() * 4);
    old.swap(seen_);
    seen_count_ = 0;
    for (const Seen& s : old) {
      if (s.round == round_) first_time(s.thread);
    }
  }
  const size_t mask = seen_.size() - 1;
  size_t i = mixed(t.node, t.stack) & mask;
  for (; seen_[i].round == round_; i = (i + 1) & mask) {
    if (seen_[i].thread == t) return false;
  }
  seen_[i] = {t, round_};
  ++seen_count_;
  return true;
}

// A thread of the state in the making.
void GrammarAutomaton::reach(uint32_t node, uint32_t stack) {
  if (static_cast<int>(stacks_[stack].depth + program_->heights[node]) > GrammarProgram::kMaxNesting) return;
  // Beyond the limit until one thread is certain: then there is a way on.
  if ((seen_count_ < kMaxReached || waiting_.empty()) && first_time({node, stack})) pending_.push_back({node, stack});
}

// Follows the pending threads to where they wait for input, and names the state.
uint32_t GrammarAutomaton::settle() {
  while (!pending_.empty()) {
    const Thread t = pending_.back();
    pending_.pop_back();
    ++work_;
    const GrammarNode& n = program_->nodes[t.node];
    const Stack top = stacks_[t.stack];
    switch (n.kind) {
      case Kind::kBytes:
      case Kind::kControl:
        if (waiting_.size() < kMaxWidth) waiting_.push_back(t);
        break;
      case Kind::kSplit:
        for (uint32_t i = n.first; i < n.first + n.count; ++i) reach(program_->targets[i], t.stack);
        break;
      case Kind::kCall: {
        const auto& rule = program_->rules[n.arg];
        reach(rule.entry, push({t.stack, n.to, kCall, top.depth + (rule.container ? 1 : 0)}));
        break;
      }
      case Kind::kReturn:
        if (t.stack == kEmpty) {
          if (first_time({kEnd, kEmpty})) waiting_.push_back({kEnd, kEmpty});
        } else {
          reach(top.node, top.below);
        }
        break;
      case Kind::kEnter:
        reach(n.to, push({t.stack, n.to, 0, top.depth}));
        break;
      case Kind::kAgain:
        reach(n.to, t.stack);
        break;
      case Kind::kLoop:
        if (top.count >= n.min) reach(n.to, top.below);
        if (top.count < n.max) {
          // Without a largest number, rounds beyond the least one are all alike.
          const uint32_t count = n.max == GrammarProgram::kEndless ? std::min(top.count + 1, n.min) : top.count + 1;
          reach(n.arg, count == top.count ? t.stack : push({top.below, top.node, count, top.depth}));
        }
        break;
    }
  }
  ++round_;
  seen_count_ = 0;

  uint64_t hash = 0;
  for (const Thread& t : waiting_) hash = mixed(hash, uint64_t{t.node} << 32 | t.stack);
  const auto [first, last] = state_index_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (std::ranges::equal(threads(it->second), waiting_)) {
      waiting_.clear();
      return it->second;
    }
  }
  const auto id = static_cast<uint32_t>(states_.size());
  states_.push_back({static_cast<uint32_t>(threads_.size()), static_cast<uint32_t>(waiting_.size()),
                     std::ranges::find(waiting_, kEnd, &Thread::node) != waiting_.end(), free_slices(waiting_)});
  threads_.insert(threads_.end(), waiting_.begin(), waiting_.end());
  state_index_.emplace(hash, id);
  rows_.emplace_back().fill(kUnknown);
  waiting_.clear();
  return id;
}

uint32_t GrammarAutomaton::make_step(uint32_t state, uint8_t byte) {
  for (const Thread& t : threads(state)) {
    if (t.node == kEnd) continue;
    const GrammarNode& n = program_->nodes[t.node];
    if (n.kind != Kind::kBytes) continue;
    for (uint32_t e = n.first; e < n.first + n.count; ++e) {
      const ByteEdge& edge = program_->edges[e];
      if (edge.lo <= byte && byte <= edge.hi) reach(edge.to, t.stack);
    }
  }
  const uint32_t to = settle();
  rows_[state][byte] = to;
  return to;
}

uint32_t GrammarAutomaton::step_token(uint32_t state, int32_t id) {
  const std::string_view bytes = vocabulary_->bytes(id);
  for (const char c : bytes) {
    state = step(state, static_cast<uint8_t>(c));
    if (state == kDead) return kDead;
  }
  if (!bytes.empty()) return state;
  for (const Thread& t : threads(state)) {
    if (t.node == kEnd) continue;
    const GrammarNode& n = program_->nodes[t.node];
    if (n.kind == Kind::kControl && n.arg == static_cast<uint32_t>(id)) reach(n.to, t.stack);
  }
  return settle();
}

uint32_t GrammarAutomaton::import(const GrammarAutomaton& from, uint32_t state) {
  std::unordered_map<uint32_t, uint32_t> known{{kEmpty, kEmpty}};
  std::vector<uint32_t> path;
  for (const Thread& t : from.threads(state)) {
    uint32_t stack = t.stack;
    for (; !known.contains(stack); stack = from.stacks_[stack].below) path.push_back(stack);
    for (; !path.empty(); path.pop_back()) {
      Stack frame = from.stacks_[path.back()];
      frame.below = known.at(frame.below);
      known.emplace(path.back(), push(frame));
    }
    waiting_.push_back({t.node, known.at(t.stack)});
  }
  return settle();
}

uint8_t GrammarAutomaton::free_slices(std::span<const Thread> threads) const {
  constexpr auto& kSlices = GrammarVocabulary::kSlices;
  uint32_t run = 0;
  for (const Thread& t : threads) {
    if (t.node == kEnd) continue;
    const GrammarNode& n = program_->nodes[t.node];
    if (n.run == GrammarNode::Run::kEndless) return kSlices.size();
    if (n.run != GrammarNode::Run::kCounted) continue;
    const Stack& top = stacks_[t.stack];
    const uint32_t max = program_->nodes[top.node].max;
    if (max == GrammarProgram::kEndless) return kSlices.size();
    run = std::max(run, max - top.count + 1);
  }
  return static_cast<uint8_t>(std::upper_bound(kSlices.begin(), kSlices.end(), run) - kSlices.begin());
}

uint32_t GrammarAutomaton::narrowed(uint32_t state) {
  const auto all = threads(state);
  waiting_.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(all.size() / 8 + 1));
  return settle();
}

GrammarAutomaton::Mask GrammarAutomaton::walk(std::shared_ptr<GrammarAutomaton>& automaton, uint32_t& state) {
  const GrammarVocabulary& vocabulary = *automaton->vocabulary_;
  Mask out;
  const uint64_t most = automaton->work_ + kMaxWork;
  out.slices = automaton->states_[state].free;
  std::vector<uint32_t> path(vocabulary.longest() + 1);  // [depth] the states along the current token
  const auto walk_trie = [&](const GrammarVocabulary::Trie& trie, size_t slice) {
    path[0] = state;
    for (uint32_t i = 0; i + 1 < trie.nodes.size();) {
      const GrammarVocabulary::Node& node = trie.nodes[i];
      const uint32_t to = automaton->step(path[node.depth - 1], node.byte);
      if (to == kDead) {
        i = node.end;
        continue;
      }
      // All that follows in a slice is plain characters: allowed where the state reached allows the slice.
      const bool all = automaton->states_[to].free > slice;
      const auto first = trie.tokens.begin() + node.first;
      if (all) {
        out.tokens.insert(out.tokens.end(), first, trie.tokens.begin() + trie.nodes[node.end].first);
      } else if (node.ends) {
        out.tokens.push_back(*first);
      }
      path[node.depth] = to;
      i = all ? node.end : i + 1;
      if (automaton->work_ > most && automaton->states_[state].count > 1) return;
      if (!automaton->full()) continue;
      auto fresh = std::make_shared<GrammarAutomaton>(*automaton->program_, vocabulary);
      fresh->work_ = automaton->work_;
      for (uint32_t d = 0; d <= node.depth; ++d) path[d] = fresh->import(*automaton, path[d]);
      state = path[0];
      automaton = std::move(fresh);
    }
  };
  walk_trie(vocabulary.others(), GrammarVocabulary::kSlices.size());
  for (size_t s = out.slices; s < GrammarVocabulary::kSlices.size(); ++s) walk_trie(vocabulary.slice(s), s);
  if (automaton->work_ > most && automaton->states_[state].count > 1) {
    state = automaton->narrowed(state);
    return walk(automaton, state);
  }
  for (const Thread& t : automaton->threads(state)) {
    if (t.node == kEnd) continue;
    const GrammarNode& n = automaton->program_->nodes[t.node];
    if (n.kind == Kind::kControl) out.tokens.push_back(static_cast<int32_t>(n.arg));
  }
  if (out.tokens.size() > 2 * vocabulary.words()) {  // as a list they are larger than as a mask
    out.words.resize(vocabulary.words());
    for (const int32_t id : out.tokens) out.words[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    out.tokens = {};
  }
  out.tokens.shrink_to_fit();
  return out;
}

void GrammarAutomaton::mask(std::shared_ptr<GrammarAutomaton>& automaton, uint32_t& state, std::span<uint64_t> bits) {
  if (!automaton->masks_.contains(state)) {
    Mask made = walk(automaton, state);
    GrammarAutomaton& self = *automaton;
    if (self.mask_words_ > kMaxMaskWords) {
      self.masks_.clear();
      self.mask_words_ = 0;
    }
    self.mask_words_ += made.tokens.size() / 2 + made.words.size() + 16;
    self.masks_.insert_or_assign(state, std::move(made));
  }
  const Mask& mask = automaton->masks_.at(state);
  if (mask.slices > 0) {
    const auto& plain = automaton->vocabulary_->plain(mask.slices);
    std::copy(plain.begin(), plain.end(), bits.begin());
    std::fill(bits.begin() + static_cast<ptrdiff_t>(plain.size()), bits.end(), 0);
  } else {
    std::fill(bits.begin(), bits.end(), 0);
  }
  for (size_t w = 0; w < mask.words.size(); ++w) bits[w] |= mask.words[w];
  for (const int32_t id : mask.tokens) bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

}  // namespace calla
