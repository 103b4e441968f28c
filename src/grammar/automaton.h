#pragma once

// The states that a grammar's program can be in, made when they are first reached.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/program.h"
#include "grammar/vocabulary.h"

namespace calla {

// A state is a set of threads: places in the program, each with its stack. The program need not be deterministic; the
// states are, so a byte costs one look into a table once its transition is known. States, and the masks of tokens that
// they allow, are made when they are first needed and found again by content. Not thread-safe.
class GrammarAutomaton {
 public:
  static constexpr uint32_t kDead = 0;  // the state without threads

  // Both must outlive the automaton.
  GrammarAutomaton(const GrammarProgram& program, const GrammarVocabulary& vocabulary);

  uint32_t start();
  uint32_t step(uint32_t state, uint8_t byte) {
    const uint32_t to = rows_[state][byte];
    return to != kUnknown ? to : make_step(state, byte);
  }
  // By the bytes of a plain token, or by a control token that a thread waits for.
  uint32_t step_token(uint32_t state, int32_t id);
  bool can_end(uint32_t state) const { return states_[state].ends; }

  // Too much was found out: it is time to begin anew.
  bool full() const {
    return states_.size() > kMaxStates || threads_.size() > kMaxThreads || stacks_.size() > kMaxStacks;
  }
  // A state of another automaton of the same program, here.
  uint32_t import(const GrammarAutomaton& from, uint32_t state);

  // Sets the bits of the tokens that may come next, stop tokens left out, and clears all others. Where that fills the
  // automaton, both are replaced by a fresh one and the state in it.
  static void mask(std::shared_ptr<GrammarAutomaton>& automaton, uint32_t& state, std::span<uint64_t> bits);

 private:
  // 4 MB of rows, 2 MB of threads, 6 MB of stacks, and 4 MB of masks.
  static constexpr size_t kMaxStates = 4096, kMaxThreads = 1 << 18, kMaxStacks = 1 << 17, kMaxMaskWords = 1 << 19;
  // Of one state. What is beyond is dropped, so that ambiguous grammars cost bounded time; what is left is still
  // allowed by the grammar and can be completed.
  static constexpr size_t kMaxWidth = 1024, kMaxReached = 1 << 14;
  // Threads looked at for one mask, about 20 ms. Beyond, the state is narrowed to an eighth of its threads.
  static constexpr uint64_t kMaxWork = 1 << 19;
  static constexpr uint32_t kUnknown = ~uint32_t{0};
  static constexpr uint32_t kEmpty = 0;           // the stack without frames
  static constexpr uint32_t kEnd = ~uint32_t{0};  // the node of a thread that has read a whole document
  static constexpr uint32_t kCall = ~uint32_t{0};

  struct Thread {
    uint32_t node, stack;
    bool operator==(const Thread&) const = default;
  };
  struct Stack {
    uint32_t below;  // what is under the top frame
    uint32_t node;   // where a call returns to, or the kLoop node
    uint32_t count;  // kCall, or the rounds of the loop
    uint32_t depth;  // levels of nesting
    bool operator==(const Stack&) const = default;
  };
  struct State {
    uint32_t first = 0, count = 0;  // of threads_
    bool ends = false;
    uint8_t free = 0;  // so many slices of the vocabulary are allowed whole
  };
  struct Mask {
    size_t slices = 0;            // allowed whole
    std::vector<int32_t> tokens;  // besides
    std::vector<uint64_t> words;  // the tokens, where they are too many for a list
  };

  std::span<const Thread> threads(uint32_t state) const {
    return {threads_.data() + states_[state].first, states_[state].count};
  }
  uint32_t make_step(uint32_t state, uint8_t byte);
  uint32_t push(const Stack& frame);
  void reach(uint32_t node, uint32_t stack);
  bool first_time(Thread t);
  uint32_t settle();
  uint8_t free_slices(std::span<const Thread> threads) const;
  uint32_t narrowed(uint32_t state);
  static Mask walk(std::shared_ptr<GrammarAutomaton>& automaton, uint32_t& state);

  const GrammarProgram* program_;
  const GrammarVocabulary* vocabulary_;
  std::vector<std::array<uint32_t, 256>> rows_;  // [states]
  std::vector<State> states_;
  std::vector<Thread> threads_;
  std::unordered_multimap<uint64_t, uint32_t> state_index_;  // by a hash of the threads
  std::vector<Stack> stacks_;
  std::unordered_multimap<uint64_t, uint32_t> stack_index_;
  std::unordered_map<uint32_t, Mask> masks_;
  size_t mask_words_ = 0;

  // Of the state in the making: what is to be looked at, what waits for input, and a hash table of what was seen.
  std::vector<Thread> pending_, waiting_;
  struct Seen {
    Thread thread;
    uint64_t round;
  };
  std::vector<Seen> seen_;
  size_t seen_count_ = 0;
  uint64_t round_ = 1;
  uint64_t work_ = 0;  // threads looked at so far
};

}  // namespace calla
