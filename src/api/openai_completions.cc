#include "api/openai_completions.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "text/chat_json.h"
#include "text/detokenizer.h"
#include "text/json_read.h"
#include "text/utf8.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxPrompts = 64;

Result<std::vector<int32_t>> ids_of(const Json& list, const std::string& path, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.size(); ++i) {
    const bool fits = list[i].is_number_unsigned() && list[i].get<uint64_t>() < static_cast<uint64_t>(tokenizer.size());
    if (!fits) return invalid(fmt::format("{}[{}] must be a token id below {}", path, i, tokenizer.size()));
    ids.push_back(list[i].get<int32_t>());
  }
  return ids;
}

class Reader {
 public:
  Reader(const Json& request, const Tokenizer& tokenizer, ApiRequest& out)
      : request_(request), tokenizer_(tokenizer), out_(out) {}

  Result<void> read() {
    CALLA_TRY(read_integer(request_, "n", 1, kMaxChoices, out_.n));
    int best_of = out_.n;
    CALLA_TRY(read_integer(request_, "best_of", 1, kMaxChoices, best_of));
    if (best_of != out_.n) return fail(Error::Code::kUnsupported, "best_of is not supported: ask for n answers");
    CALLA_TRY(read_stream_options(request_, out_));
    CALLA_TRY(read_flag(request_, "echo", echo_));
    if (echo_ && out_.options.sampling.logprobs >= 0) {
      return fail(Error::Code::kUnsupported, "echo cannot be combined with logprobs: those of the prompt are not kept");
    }
    CALLA_TRY(read_string(request_, "suffix", suffix_));
    return read_prompts(json_member(request_, "prompt"));
  }

 private:
  Result<void> read_prompts(const Json& prompt) {
    if (prompt.is_string()) return add_text(prompt);
    if (!prompt.is_array() || prompt.empty()) {
      return wrong_type("prompt", "a string, a list of token ids, or a list of either", prompt);
    }
    if (prompt[0].is_number()) return add_ids(prompt, "prompt");
    if (prompt.size() > kMaxPrompts) {
      return invalid(fmt::format("prompt has {} parts, expected at most {}", prompt.size(), kMaxPrompts));
    }
    for (size_t i = 0; i < prompt.size(); ++i) {
      const std::string path = fmt::format("prompt[{}]", i);
      if (prompt[i].is_string()) {
        CALLA_TRY(add_text(prompt[i]));
      } else if (prompt[i].is_array()) {
        CALLA_TRY(add_ids(prompt[i], path));
      } else {
        return wrong_type(path, "a string or a list of token ids", prompt[i]);
      }
    }
    return {};
  }

  Result<void> add_text(const Json& text) {
    return add(tokenizer_.encode_official(json_text(text)), text.get<std::string>());
  }

  Result<void> add_ids(const Json& list, const std::string& path) {
    CALLA_ASSIGN(std::vector<int32_t> ids, ids_of(list, path, tokenizer_));
    Detokenizer detokenizer(tokenizer_);
    std::string text;
    for (const int32_t id : ids) text += detokenizer.push(id);
    text += detokenizer.finish();
    return add(std::move(ids), std::move(text));
  }

  Result<void> add(std::vector<int32_t> ids, std::string text) {
    if (!suffix_.empty()) {
      const auto prefix = tokenizer_.control_id("<|fim_prefix|>"), suffix = tokenizer_.control_id("<|fim_suffix|>"),
                 middle = tokenizer_.control_id("<|fim_middle|>");
      if (!prefix || !suffix || !middle) {
        return fail(Error::Code::kUnsupported, "suffix is not supported: this model has no markers to fill a middle");
      }
      ids.insert(ids.begin(), *prefix);
      ids.push_back(*suffix);
      const std::vector<int32_t> after = tokenizer_.encode_official(suffix_);
      ids.insert(ids.end(), after.begin(), after.end());
      ids.push_back(*middle);
    }
    out_.prompts.push_back(std::move(ids));
    if (echo_) out_.echo_prompts.push_back(std::move(text));
    return {};
  }

  const Json& request_;
  const Tokenizer& tokenizer_;
  ApiRequest& out_;
  bool echo_ = false;
  std::string suffix_;
};

// Completions' own form of log-probabilities, column by column.
class Columns {
 public:
  Columns(const Tokenizer& tokenizer, size_t offset) : tokenizer_(tokenizer), offset_(offset) {}

  void add(const Sampled& token) {
    const auto letters = [&](int32_t id) { return repair_utf8(tokenizer_.bytes(id)); };
    tokens_.push_back(letters(token.id));
    logprobs_.push_back(token.logprob);
    Json top = Json::object();
    for (const TokenLogprob& other : token.top) top[letters(other.id)] = std::max(other.logprob, -9999.0f);
    top_.push_back(std::move(top));
    offsets_.push_back(offset_);
    offset_ += tokenizer_.bytes(token.id).size();
  }
  size_t offset() const { return offset_; }
  Json json() const {
    return {{"tokens", tokens_}, {"token_logprobs", logprobs_}, {"top_logprobs", top_}, {"text_offset", offsets_}};
  }

 private:
  const Tokenizer& tokenizer_;
  size_t offset_;  // in bytes of the answer
  Json tokens_ = Json::array(), logprobs_ = Json::array(), top_ = Json::array(), offsets_ = Json::array();
};

class CompletionsWriter final : public AnswerWriter {
 public:
  explicit CompletionsWriter(WriterContext context) : context_(std::move(context)) {}

  void begin(int, int, std::string& out) override {
    // The first prompt's begin() stands for all: what is echoed does not depend on the model.
    for (size_t i = 0; !begun_ && i < context_.echo_prompts.size() * context_.n; ++i) {
      chunk(static_cast<int>(i), context_.echo_prompts[i / context_.n], nullptr, {}, out);
    }
    begun_ = true;
  }
  void event(int index, const AnswerEvent& event, const ApiAnswer&, bool, std::span<const Sampled> logprobs,
             std::string& out) override {
    chunk(index, event.text, nullptr, logprobs, out);
  }
  void end(int index, const ApiAnswer& answer, std::span<const Sampled> logprobs, std::string& out) override {
    chunk(index, "", &answer, logprobs, out);
  }
  void finish(std::span<const ApiAnswer> answers, std::string& out) override {
    finish_openai_stream(head(), context_, answers, out);
  }
  void fail(const ApiError& error, std::string& out) override { fail_openai_stream(error, out); }

  std::string body(std::span<const ApiAnswer> answers) override {
    Json choices = Json::array();
    for (size_t i = 0; i < answers.size(); ++i) {
      std::string text = context_.echo_prompts.empty() ? "" : context_.echo_prompts[i / context_.n];
      text += answers[i].joined(AnswerPart::Kind::kText);
      choices.push_back({{"index", i},
                         {"text", std::move(text)},
                         {"logprobs", logprobs_json(static_cast<int>(i), answers[i].logprobs)},
                         {"finish_reason", finish_reason_name(answers[i].result.finish)}});
    }
    Json out = head();
    out["choices"] = std::move(choices);
    out["usage"] = openai_usage(answers, context_.n);
    return python_json(out);
  }

 private:
  Json head() const {
    return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", context_.model}};
  }
  Json logprobs_json(int index, std::span<const Sampled> tokens) {
    if (!context_.logprobs) return nullptr;
    if (static_cast<size_t>(index) >= offsets_.size()) offsets_.resize(index + 1);
    Columns columns(*context_.tokenizer, offsets_[index]);
    for (const Sampled& token : tokens) columns.add(token);
    offsets_[index] = columns.offset();
    return columns.json();
  }
  void chunk(int index, std::string_view text, const ApiAnswer* finished, std::span<const Sampled> logprobs,
             std::string& out) {
    Json choice = {{"index", index}, {"text", text}, {"logprobs", logprobs_json(index, logprobs)}};
    choice["finish_reason"] = finished != nullptr ? Json(finish_reason_name(finished->result.finish)) : Json();
    Json data = head();
    data["choices"] = Json::array({std::move(choice)});
    append_sse(out, "", data);
  }

  const WriterContext context_;
  const std::string id_ = new_id("cmpl-");
  const int64_t created_ = unix_time();
  bool begun_ = false;
  std::vector<size_t> offsets_;  // of each answer's next token
};

}  // namespace

ApiResult<ApiRequest> parse_completions(std::string_view body, const ApiDefaults& defaults,
                                        const Tokenizer& tokenizer) {
  return parse_request(body, [&](const Json& request, ApiRequest& out) -> Result<void> {
    ApiDefaults own = defaults;
    own.options.max_tokens = 16;
    CALLA_TRY(read_basics(request, own, out));
    return Reader(request, tokenizer, out).read();
  });
}

std::unique_ptr<AnswerWriter> completions_writer(WriterContext context) {
  return std::make_unique<CompletionsWriter>(std::move(context));
}

}  // namespace calla
