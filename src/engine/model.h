#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/runner.h"
#include "formats/config.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace calla {

// Everything that turns a conversation into an answer, from one checkpoint folder. The tokenizer and the template may
// be used from any thread; the runner by one at a time.
class Model {
 public:
  struct Parts {
    std::string name;  // the folder's, for people to read
    Tokenizer tokenizer;
    Result<ChatTemplate> chat_template;  // a checkpoint without one can still continue raw text
    GenerationConfig generation;         // defaults for sampling
    std::vector<int32_t> stop_ids;
    std::unique_ptr<Runner> runner;
  };

  // Errors: what open_runner and Tokenizer::load refuse, a damaged generation_config.json, a tokenizer larger than the
  // model's vocabulary. options.context 0: the model's own limit, or kDefaultContext where that is less.
  static Result<std::unique_ptr<Model>> open(const std::filesystem::path& dir, RunnerOptions options);
  static constexpr int kDefaultContext = 32768;

  explicit Model(Parts parts);

  const std::string& name() const { return parts_.name; }
  const Tokenizer& tokenizer() const { return parts_.tokenizer; }
  const GenerationConfig& generation_config() const { return parts_.generation; }
  Runner& runner() { return *parts_.runner; }

  // Ids that end an answer: those of config.json (both levels), generation_config.json, and the tokenizer's eos_token.
  std::span<const int32_t> stop_ids() const { return parts_.stop_ids; }
  bool is_stop(int32_t id) const;

  // The conversation as tokens. Errors: no known chat template, or what the template refuses.
  Result<std::vector<int32_t>> encode(const Conversation& conversation) const;

  // Where in an encoded conversation the last turn's header begins, or 0. What follows it is rendered differently once
  // the turn is history (the template drops old reasoning), so this is the place to mark.
  int last_turn(std::span<const int32_t> prompt) const;

  // Whether the prompt ends inside the reasoning: <think> without </think> after it.
  bool ends_in_reasoning(std::span<const int32_t> prompt) const;

 private:
  Parts parts_;
};

}  // namespace calla
