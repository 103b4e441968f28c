#include "engine/answer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace calla {
namespace {

constexpr int kMostRoom = 1024;  // tokens kept free for what follows the reasoning

}  // namespace

Answer::Answer(Model& model, std::span<const int32_t> prompt, const GenerateOptions& options, AnswerRules rules,
               OnDelta on_delta)
    : model_(model),
      options_(options),
      rules_(std::move(rules)),
      on_delta_(std::move(on_delta)),
      sampler_(options.sampling, model.tokenizer().size(), prompt),
      detokenizer_(model.tokenizer()),
      stops_(options.stop),
      // The last token is chosen and not fed: it takes no position.
      limit_(model.runner().context() - static_cast<int>(prompt.size()) + 1),
      context_(options.max_tokens == 0 || options.max_tokens > limit_),
      open_(model.tokenizer().control_id("<think>")),
      close_(model.tokenizer().control_id("</think>")),
      call_(model.tokenizer().control_id("<tool_call>")),
      reasoning_(rules_.in_reasoning && close_) {
  if (!context_) limit_ = options.max_tokens;
  if (close_) {
    model.tokenizer().encode("\n", closing_);
    closing_.push_back(*close_);
    model.tokenizer().encode("\n\n", closed_);
    closing_.insert(closing_.end(), closed_.begin(), closed_.end());
  }
  if (rules_.grammar) {
    matcher_.emplace(rules_.grammar);
    mask_.assign(rules_.grammar->vocabulary().words(), ~uint64_t{0});
    const auto forbid = [&](int32_t id) { mask_[id / 64] &= ~(uint64_t{1} << (id % 64)); };
    for (const int32_t id : rules_.grammar->vocabulary().stop_ids()) forbid(id);
    if (call_) forbid(*call_);
  }
  out_.prompt_tokens = static_cast<int>(prompt.size());
  out_.seed = sampler_.seed();
}

Result<bool> Answer::next(std::span<float> logits) {
  CALLA_ASSIGN(Sampled token, choose(logits));
  if (out_.tokens.empty()) {
    out_.times.first_seconds = seconds_since(start_);
    first_ = Clock::now();
  }
  out_.times.decode_seconds = seconds_since(first_);
  const int32_t id = token.id;
  follow(id);
  out_.tokens.push_back(std::move(token));
  const bool ended = !options_.ignore_eos && model_.is_stop(id);
  if (!emit(ended ? std::string() : stops_.push(detokenizer_.push(id)), &out_.tokens.back())) {
    return end(FinishReason::kCancelled);
  }
  if (ended) return end(FinishReason::kStopToken);
  if (stops_.stopped()) return end(FinishReason::kStopString);
  if (static_cast<int>(out_.tokens.size()) >= limit_) {
    return end(context_ ? FinishReason::kContext : FinishReason::kLength);
  }
  return true;
}

Result<Sampled> Answer::choose(std::span<float> logits) {
  if (forced_.empty() && must_close()) forced_.assign(closing_.rbegin(), closing_.rend());
  if (!forced_.empty()) {
    const int32_t id = forced_.back();
    forced_.pop_back();
    return sampler_.force(logits, id);
  }
  const bool ruled = matcher_ && !reasoning_;
  if (ruled) matcher_->mask(mask_);
  CALLA_ASSIGN(Sampled token, sampler_.sample(logits, mask_));
  if (ruled) CHECK(matcher_->accept(token.id), "a token that the grammar's mask allowed is not accepted");
  return token;
}

bool Answer::must_close() const {
  if (!reasoning_) return false;
  if (rules_.thinking_budget >= 0 && thought_ >= rules_.thinking_budget) return true;
  const int room = std::min(limit_ / 4, kMostRoom) + static_cast<int>(closing_.size());
  return static_cast<int>(out_.tokens.size()) >= limit_ - room;
}

// A call inside the reasoning ends it: the model forgets the marker now and then.
void Answer::follow(int32_t id) {
  if (reasoning_) {
    ++thought_;
    ++out_.reasoning_tokens;
    reasoning_ = id != close_ && id != call_;
    if (id == close_ && matcher_ && forced_.empty()) forced_.assign(closed_.rbegin(), closed_.rend());
  } else if (id == open_ && close_) {
    reasoning_ = true;
    thought_ = 0;
  }
}

bool Answer::emit(std::string_view text, const Sampled* token) {
  out_.text += text;
  return !on_delta_ || on_delta_({text, token});
}

bool Answer::end(FinishReason reason) {
  if (!stops_.stopped()) {
    std::string rest = stops_.push(detokenizer_.finish());
    rest += stops_.finish();
    emit(rest, nullptr);
  } else {
    out_.stop = stops_.matched();
    emit({}, nullptr);
  }
  out_.finish = stops_.stopped() ? FinishReason::kStopString : reason;
  return false;
}

}  // namespace calla
