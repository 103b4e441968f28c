#include "engine/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/answer.h"

namespace calla {
namespace {

constexpr size_t kMaxStops = 16, kMaxStopBytes = 1024;

// One call of generate().
class Generating {
 public:
  Generating(Model& model, Sequence& sequence, std::span<const int32_t> prompt, const GenerateOptions& options)
      : model_(model),
        sequence_(sequence),
        prompt_(prompt),
        options_(options),
        answer_(model, prompt, options, {}, options.on_delta) {}

  Result<Generation> run() {
    CALLA_ASSIGN(const bool whole, read_prompt());
    answer_.prompt_read();
    if (whole) {
      CALLA_TRY(decode());
    } else {
      answer_.generation().finish = FinishReason::kCancelled;
    }
    return std::move(answer_.generation());
  }

 private:
  bool cancelled() const { return options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed); }

  // Leaves the logits of the prompt's last token in logits_. False: cancelled.
  Result<bool> read_prompt() {
    Runner& runner = model_.runner();
    const auto& held = sequence_.tokens();
    const auto apart = std::mismatch(held.begin(), held.end(), prompt_.begin(), prompt_.end()).first;
    // The last token is always read again: its logits are not kept.
    base_ = std::min(static_cast<int>(apart - held.begin()), static_cast<int>(prompt_.size()) - 1);
    CALLA_TRY(runner.rollback(sequence_, sequence_.position() - base_));
    answer_.generation().reused_tokens = base_;
    for (const int mark : options_.marks) {
      if (mark < base_ || mark >= static_cast<int>(prompt_.size())) continue;
      CALLA_ASSIGN(const bool whole, feed(mark, Step::Logits::kNone));
      if (!whole) return false;
      CALLA_TRY(runner.mark(sequence_));
    }
    return feed(static_cast<int>(prompt_.size()), Step::Logits::kLast);
  }

  // Reads the prompt up to position `end`. False: cancelled.
  Result<bool> feed(int end, Step::Logits logits) {
    if (cancelled()) return false;
    base_ = sequence_.position();
    if (base_ == end) return true;
    const Step step{&sequence_, prompt_.subspan(base_, end - base_), logits};
    const auto progress = [](void* self, int done) { return static_cast<Generating*>(self)->on_pass(done); };
    const Result<std::span<float>> result = model_.runner().forward({&step, 1}, progress, this);
    if (result) {
      logits_ = *result;
      return true;
    }
    if (result.error().code == Error::Code::kCancelled) return false;
    return tl::unexpected<Error>(result.error());
  }
  bool on_pass(int done) {
    if (options_.on_prompt && !options_.on_prompt(base_ + done, static_cast<int>(prompt_.size()))) return false;
    // With the last pass the logits are there: cancelling is then decode()'s to see.
    return base_ + done == static_cast<int>(prompt_.size()) || !cancelled();
  }

  Result<void> decode() {
    for (;;) {
      if (cancelled()) {
        answer_.cancel();
        return {};
      }
      CALLA_ASSIGN(const bool more, answer_.next(logits_));
      if (!more) return {};
      const int32_t id = answer_.token();
      const Step step{&sequence_, {&id, 1}, Step::Logits::kLast};
      CALLA_ASSIGN(logits_, model_.runner().forward({&step, 1}));
    }
  }

  Model& model_;
  Sequence& sequence_;
  std::span<const int32_t> prompt_;
  const GenerateOptions& options_;
  Answer answer_;
  std::span<float> logits_;  // of the last token, in the runner
  int base_ = 0;             // tokens of the prompt that the sequence held before the pass that runs
};

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken:
    case FinishReason::kStopString:
      return "stop";
    case FinishReason::kLength:
    case FinishReason::kContext:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

Result<void> check_options(const GenerateOptions& o) {
  CALLA_TRY(check_sampling(o.sampling));
  if (o.max_tokens < 0) return invalid(fmt::format("max_tokens is {}, expected 0 (no limit) or more", o.max_tokens));
  if (o.stop.size() > kMaxStops)
    return invalid(fmt::format("{} stop strings, expected at most {}", o.stop.size(), kMaxStops));
  for (const std::string& s : o.stop) {
    if (s.empty() || s.size() > kMaxStopBytes) {
      return invalid(fmt::format("a stop string has {} bytes, expected 1 to {}", s.size(), kMaxStopBytes));
    }
  }
  return {};
}

double Generation::prompt_rate() const {
  const int read = prompt_tokens - reused_tokens;
  return times.prompt_seconds > 0 ? read / times.prompt_seconds : 0;
}

double Generation::decode_rate() const {
  return tokens.size() > 1 && times.decode_seconds > 0 ? static_cast<double>(tokens.size() - 1) / times.decode_seconds
                                                       : 0;
}

Result<void> check_prompt(size_t tokens, int context) {
  if (tokens == 0) return invalid("the prompt is empty");
  if (tokens > static_cast<size_t>(context)) {
    return invalid(fmt::format(
        "the prompt has {} tokens and the context holds {}: shorten it or choose a larger --context", tokens, context));
  }
  return {};
}

Result<Generation> generate(Model& model, Sequence& sequence, std::span<const int32_t> prompt,
                            const GenerateOptions& options) {
  CALLA_TRY(check_options(options));
  CALLA_TRY(check_prompt(prompt.size(), model.runner().context()));
  return Generating(model, sequence, prompt, options).run();
}

}  // namespace calla
