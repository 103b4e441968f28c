#include "api/answer.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "base/random.h"
#include "text/chat_json.h"
#include "text/utf8.h"

namespace calla {

using Json = nlohmann::ordered_json;

bool ApiAnswer::has_call() const {
  return std::any_of(parts.begin(), parts.end(), [](auto& p) { return p.kind == AnswerPart::Kind::kCall; });
}

std::string ApiAnswer::joined(AnswerPart::Kind kind) const {
  std::string out;
  for (const AnswerPart& part : parts) {
    if (part.kind == kind) out += part.text;
  }
  return out;
}

std::string new_id(std::string_view prefix) {
  static std::mutex mutex;
  static Random random = [] {
    std::random_device device;
    return Random((uint64_t{device()} << 32) | device());
  }();
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string out(prefix);
  const std::lock_guard lock(mutex);
  for (int i = 0; i < 24; ++i) out += kLetters[random.below(kLetters.size())];
  return out;
}

int64_t unix_time() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

void append_sse(std::string& out, std::string_view event, const Json& data) {
  if (!event.empty()) out.append("event: ").append(event).append("\n");
  out.append("data: ").append(python_json(data)).append("\n\n");
}

namespace {

Json one_logprob(const Tokenizer& tokenizer, int32_t id, float logprob) {
  const std::string_view bytes = tokenizer.bytes(id);
  Json numbers = Json::array();
  for (const char c : bytes) numbers.push_back(static_cast<uint8_t>(c));
  // JSON has no −inf.
  return {{"token", repair_utf8(bytes)}, {"logprob", std::max(logprob, -9999.0f)}, {"bytes", std::move(numbers)}};
}

}  // namespace

Json logprob_json(const Tokenizer& tokenizer, const Sampled& token) {
  Json out = one_logprob(tokenizer, token.id, token.logprob);
  Json top = Json::array();
  for (const TokenLogprob& other : token.top) top.push_back(one_logprob(tokenizer, other.id, other.logprob));
  out["top_logprobs"] = std::move(top);
  return out;
}

Json openai_usage(std::span<const ApiAnswer> answers, int n) {
  int prompt = 0, cached = 0, completion = 0, reasoning = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    const Generation& result = answers[i].result;
    if (i % static_cast<size_t>(n) == 0) {
      prompt += result.prompt_tokens;
      cached += result.reused_tokens;
    }
    completion += answers[i].answer_tokens;
    reasoning += result.reasoning_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
}

void finish_openai_stream(Json head, const WriterContext& context, std::span<const ApiAnswer> answers,
                          std::string& out) {
  if (context.include_usage) {
    head["choices"] = Json::array();
    head["usage"] = openai_usage(answers, context.n);
    append_sse(out, "", head);
  }
  out += "data: [DONE]\n\n";
}

void fail_openai_stream(const ApiError& error, std::string& out) {
  append_sse(out, "", {{"error", error_json(ApiStyle::kOpenAi, error)}});
  out += "data: [DONE]\n\n";
}

}  // namespace calla
