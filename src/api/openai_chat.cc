#include "api/openai_chat.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "text/chat_json.h"
#include "text/chat_request.h"
#include "text/json_read.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

Result<void> read(const Json& request, const ApiDefaults& defaults, ApiRequest& out) {
  CALLA_TRY(read_basics(request, defaults, out));
  CALLA_ASSIGN(out.conversation, read_conversation(request));
  if (out.conversation.messages.empty()) return invalid("messages must hold at least one message");
  out.conversation.add_generation_prompt = true;
  CALLA_TRY(read_integer(request, "n", 1, kMaxChoices, out.n));
  CALLA_TRY(read_stream_options(request, out));
  CALLA_TRY(read_tool_choice(json_member(request, "tool_choice"), "function",
                             "{\"type\": \"function\", \"function\": {\"name\": …}}", out));
  CALLA_TRY(each_object(json_member(request, "tools"), "tools", [&](const Json& tool, const std::string& path) {
    return read_strict(json_member(tool, "function"), path + ".function.", out);
  }));
  CALLA_TRY(read_flag(request, "parallel_tool_calls", out.parallel_tool_calls));
  CALLA_TRY(read_format(json_member(request, "response_format"), "response_format", "json_schema", out));
  CALLA_TRY(read_effort(json_member(request, "reasoning_effort"), "reasoning_effort", out));
  CALLA_TRY(read_integer(json_member(request, "chat_template_kwargs"), "thinking_budget", -1, INT32_MAX,
                         out.thinking_budget, "chat_template_kwargs."));
  CALLA_TRY(read_integer(request, "thinking_budget", -1, INT32_MAX, out.thinking_budget));
  if (!out.conversation.thinking) out.conversation.thinking = defaults.thinking;
  return settle(out);
}

const char* finish_reason(const ApiAnswer& answer) {
  const std::string_view reason = finish_reason_name(answer.result.finish);
  if (reason == "length") return "length";
  return answer.has_call() ? "tool_calls" : "stop";
}

class ChatWriter final : public AnswerWriter {
 public:
  explicit ChatWriter(WriterContext context) : context_(std::move(context)) {}

  void begin(int, int, std::string&) override {}

  void event(int index, const AnswerEvent& event, const ApiAnswer& answer, bool, std::span<const Sampled> logprobs,
             std::string& out) override {
    const auto call = [&](Json function) {
      return Json::array({{{"index", event.call}, {"function", std::move(function)}}});
    };
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning:
        return chunk(index, {{"reasoning_content", event.text}}, nullptr, logprobs, out);
      case AnswerEvent::Kind::kText:
        return chunk(index, {{"content", event.text}}, nullptr, logprobs, out);
      case AnswerEvent::Kind::kCallBegin: {
        const Json first = {{"index", event.call},
                            {"id", "call_" + answer.parts.back().id},
                            {"type", "function"},
                            {"function", {{"name", event.text}, {"arguments", ""}}}};
        return chunk(index, {{"tool_calls", Json::array({first})}}, nullptr, logprobs, out);
      }
      case AnswerEvent::Kind::kCallArguments:
        return chunk(index, {{"tool_calls", call({{"arguments", event.text}})}}, nullptr, logprobs, out);
      case AnswerEvent::Kind::kCallEnd:
        if (!logprobs.empty()) chunk(index, Json::object(), nullptr, logprobs, out);
    }
  }

  void end(int index, const ApiAnswer& answer, std::span<const Sampled> logprobs, std::string& out) override {
    chunk(index, Json::object(), finish_reason(answer), logprobs, out);
  }

  void finish(std::span<const ApiAnswer> answers, std::string& out) override {
    finish_openai_stream(head("chat.completion.chunk"), context_, answers, out);
  }

  void fail(const ApiError& error, std::string& out) override { fail_openai_stream(error, out); }

  std::string body(std::span<const ApiAnswer> answers) override {
    Json out = head("chat.completion");
    Json choices = Json::array();
    for (const ApiAnswer& answer : answers) {
      Json message = {{"role", "assistant"}, {"content", answer.joined(AnswerPart::Kind::kText)}};
      if (std::string reasoning = answer.joined(AnswerPart::Kind::kReasoning); !reasoning.empty()) {
        message["reasoning_content"] = std::move(reasoning);
      }
      for (const AnswerPart& part : answer.parts) {
        if (part.kind != AnswerPart::Kind::kCall) continue;
        message["tool_calls"].push_back({{"id", "call_" + part.id},
                                         {"type", "function"},
                                         {"function", {{"name", part.name}, {"arguments", part.text}}}});
      }
      if (answer.has_call() && message["content"] == "") message["content"] = nullptr;
      choices.push_back({{"index", choices.size()},
                         {"message", std::move(message)},
                         {"logprobs", context_.logprobs ? logprobs_json(answer.logprobs) : Json()},
                         {"finish_reason", finish_reason(answer)}});
    }
    out["choices"] = std::move(choices);
    out["usage"] = openai_usage(answers, context_.n);
    return python_json(out);
  }

 private:
  Json head(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", context_.model}};
  }

  Json logprobs_json(std::span<const Sampled> tokens) const {
    Json content = Json::array();
    for (const Sampled& token : tokens) content.push_back(logprob_json(*context_.tokenizer, token));
    return {{"content", std::move(content)}};
  }

  // The role goes out once for each choice, with whatever comes first.
  void chunk(int index, Json delta, const char* finish, std::span<const Sampled> logprobs, std::string& out) {
    if (static_cast<size_t>(index) >= begun_.size()) begun_.resize(index + 1);
    if (!begun_[index]) {
      begun_[index] = true;
      Json first = {{"role", "assistant"}};
      first.update(delta);
      delta = std::move(first);
    }
    Json choice = {{"index", index}, {"delta", std::move(delta)}};
    if (context_.logprobs) choice["logprobs"] = logprobs_json(logprobs);
    choice["finish_reason"] = finish != nullptr ? Json(finish) : Json();
    Json data = head("chat.completion.chunk");
    data["choices"] = Json::array({std::move(choice)});
    append_sse(out, "", data);
  }

  const WriterContext context_;
  const std::string id_ = new_id("chatcmpl-");
  const int64_t created_ = unix_time();
  std::vector<bool> begun_;
};

}  // namespace

ApiResult<ApiRequest> parse_chat(std::string_view body, const ApiDefaults& defaults) {
  return parse_request(body, [&](const Json& request, ApiRequest& out) { return read(request, defaults, out); });
}

std::unique_ptr<AnswerWriter> chat_writer(WriterContext context) {
  return std::make_unique<ChatWriter>(std::move(context));
}

}  // namespace calla
