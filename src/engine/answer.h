#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/generate.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/stop.h"
#include "grammar/grammar.h"
#include "text/detokenizer.h"

namespace calla {

// What a request says about an answer besides GenerateOptions.
struct AnswerRules {
  std::shared_ptr<const Grammar> grammar;  // of what follows the reasoning; null: anything
  bool in_reasoning = false;               // the prompt ends inside <think>
  int thinking_budget = -1;                // most tokens of one block of reasoning; -1: none of its own
};

// One answer while it grows, apart from the passes that give its logits: chooses tokens, turns them into text, and says
// when it ends. Not thread-safe. The model must outlive it.
//
// Reasoning is closed by force ("\n</think>\n\n") where its budget ends, each block by itself, and where less than a
// quarter of the tokens that the answer may have (at most 1024) would be left for what follows it. A grammar begins
// after the reasoning and the two line ends that follow it, which are then given too; until then the answer can neither
// end nor call a tool.
class Answer {
 public:
  using OnDelta = std::function<bool(const Delta&)>;  // false cancels

  // REQUIRES: check_options(options), 0 < prompt ≤ the runner's context.
  Answer(Model& model, std::span<const int32_t> prompt, const GenerateOptions& options, AnswerRules rules,
         OnDelta on_delta);

  // Chooses the next token from the row of logits of the one before, and hands on the text that is certain. Returns
  // whether the answer goes on: then token() is the one to feed. An error: damaged logits.
  Result<bool> next(std::span<float> logits);
  int32_t token() const { return out_.tokens.back().id; }

  // Ends it from outside: what was held back is let out. Once, and not after next() has ended it.
  void cancel() { end(FinishReason::kCancelled); }

  // The prompt has been read: the clock of the first token.
  void prompt_read() { out_.times.prompt_seconds = seconds_since(start_); }
  // Complete when it has ended. `reused_tokens` is the caller's to fill in.
  Generation& generation() { return out_; }

 private:
  Result<Sampled> choose(std::span<float> logits);
  void follow(int32_t id);
  bool must_close() const;
  bool emit(std::string_view text, const Sampled* token);
  bool end(FinishReason reason);  // false, for next() to return

  Model& model_;
  const GenerateOptions options_;
  const AnswerRules rules_;
  const OnDelta on_delta_;
  Sampler sampler_;
  Detokenizer detokenizer_;
  StopStrings stops_;
  int limit_;                                   // most tokens of the answer, from max_tokens and the context
  bool context_;                                // it is the context that limits
  std::optional<int32_t> open_, close_, call_;  // <think>, </think>, <tool_call>
  std::vector<int32_t> closing_;                // "\n</think>\n\n"
  std::vector<int32_t> closed_;                 // "\n\n"
  std::vector<int32_t> forced_;                 // to come before anything is chosen, last first
  std::optional<GrammarMatcher> matcher_;
  std::vector<uint64_t> mask_;  // only with a grammar; of the reasoning while that lasts
  bool reasoning_;
  int thought_ = 0;  // tokens of the present block of reasoning
  Generation out_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point first_;
};

}  // namespace calla
