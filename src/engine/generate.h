#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/model.h"
#include "engine/sampler.h"

namespace calla {

// Why an answer ended.
enum class FinishReason : uint8_t {
  kStopToken,   // the model ended it
  kStopString,  // one of GenerateOptions::stop appeared
  kLength,      // max_tokens
  kContext,     // the context is full
  kCancelled,   // by `cancel` or a callback, while the prompt was read or afterwards
};
// As in OpenAI's API: "stop", "stop", "length", "length"; and "cancelled".
std::string_view finish_reason_name(FinishReason reason);

// What one more token brought. `text` is whole UTF-8 characters that no stop string can take back; it lags behind the
// tokens, and may be empty. The last call has the rest of the text and no token.
struct Delta {
  std::string_view text;
  const Sampled* token = nullptr;
};

struct GenerateOptions {
  SamplingParams sampling;
  std::vector<std::string> stop;  // at most 16, of 1 to 1024 bytes; searched in the text as it is emitted
  int max_tokens = 0;             // 0: what the context holds
  bool ignore_eos = false;        // go on after the model's stop tokens (for measuring)
  std::vector<int> marks;  // positions of the prompt, ascending, at which the sequence is marked for later rollback

  const std::atomic<bool>* cancel = nullptr;  // looked at between passes
  std::function<bool(int done, int total)>
      on_prompt;                               // tokens of the prompt read so far, reused ones included; false cancels
  std::function<bool(const Delta&)> on_delta;  // false cancels
};

// An error names the first field that is out of range.
Result<void> check_options(const GenerateOptions& options);
// An error where a prompt is empty or longer than the context.
Result<void> check_prompt(size_t tokens, int context);

struct GenerationTimes {
  double prompt_seconds = 0;  // rollback and prompt, until the logits of its last token
  double first_seconds = 0;   // until the first token was chosen
  double decode_seconds = 0;  // from the first token to the last
};

struct Generation {
  std::string text;
  std::vector<Sampled> tokens;  // a stop token included
  FinishReason finish = FinishReason::kStopToken;
  std::string stop;  // of kStopString: which
  int prompt_tokens = 0;
  int reused_tokens = 0;     // of the prompt, whose state was there already
  int reasoning_tokens = 0;  // of the answer, up to and with the </think> that ends them
  uint64_t seed = 0;
  GenerationTimes times;

  double prompt_rate() const;  // tokens a second, of those that were not reused; 0 when unknown
  double decode_rate() const;  // tokens a second after the first; 0 when unknown
};

// Continues `prompt` on `sequence`, which may hold anything: the part that it shares with the prompt is kept, the rest
// rolled back and read. Afterwards it holds the prompt and the answer except for the last token. After an error it is
// still usable. Errors: an option out of range, an empty prompt, a prompt larger than the context, damaged logits.
// Cancelling is not an error. One thread at a time may use a model.
Result<Generation> generate(Model& model, Sequence& sequence, std::span<const int32_t> prompt,
                            const GenerateOptions& options);

}  // namespace calla
