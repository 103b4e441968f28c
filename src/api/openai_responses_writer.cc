#include <nlohmann/json.hpp>
#include <utility>

#include "api/openai_responses.h"
#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

class ResponsesWriter final : public AnswerWriter {
 public:
  explicit ResponsesWriter(WriterContext context) : context_(std::move(context)) {}

  void begin(int, int, std::string& out) override {
    for (const char* type : {"response.created", "response.in_progress"}) {
      send(type, {{"response", response("in_progress", Json::array())}}, out);
    }
  }

  void event(int, const AnswerEvent& event, const ApiAnswer& answer, bool fresh, std::span<const Sampled> logprobs,
             std::string& out) override {
    const AnswerPart& part = answer.parts.back();
    if (fresh) {
      if (open_) close(answer.parts[answer.parts.size() - 2], "completed", out);
      begin_item(part, out);
    }
    pending_.insert(pending_.end(), logprobs.begin(), logprobs.end());
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning:
        send("response.reasoning_text.delta", in_content(part, {{"delta", event.text}}), out);
        break;
      case AnswerEvent::Kind::kText: {
        Json delta = {{"delta", event.text}};
        delta["logprobs"] = logprobs_json(pending_);
        shown_.insert(shown_.end(), pending_.begin(), pending_.end());
        pending_.clear();
        send("response.output_text.delta", in_content(part, std::move(delta)), out);
        break;
      }
      case AnswerEvent::Kind::kCallArguments:
        send("response.function_call_arguments.delta", in_item(part, {{"delta", event.text}}), out);
        break;
      case AnswerEvent::Kind::kCallBegin:
        break;
      case AnswerEvent::Kind::kCallEnd:
        close(part, "completed", out);
        break;
    }
  }

  void end(int, const ApiAnswer& answer, std::span<const Sampled>, std::string& out) override {
    if (open_) close(answer.parts.back(), is_cut(answer) ? "incomplete" : "completed", out);
  }

  void finish(std::span<const ApiAnswer> answers, std::string& out) override {
    const Json whole = complete(answers.front());
    send(whole["status"] == "incomplete" ? "response.incomplete" : "response.completed", {{"response", whole}}, out);
  }

  void fail(const ApiError& error, std::string& out) override {
    Json failed = response("failed", Json::array());
    failed["error"] = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.message}};
    send("response.failed", {{"response", std::move(failed)}}, out);
  }

  std::string body(std::span<const ApiAnswer> answers) override { return python_json(complete(answers.front())); }

 private:
  Json response(const char* status, Json output) const {
    Json out = {{"id", id_},
                {"object", "response"},
                {"created_at", created_},
                {"status", status},
                {"background", false},
                {"error", nullptr},
                {"incomplete_details", nullptr},
                {"instructions", nullptr},
                {"max_output_tokens", nullptr},
                {"model", context_.model},
                {"output", std::move(output)},
                {"parallel_tool_calls", true},
                {"previous_response_id", nullptr},
                {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                {"store", false},
                {"temperature", nullptr},
                {"text", {{"format", {{"type", "text"}}}}},
                {"tool_choice", "auto"},
                {"tools", Json::array()},
                {"top_p", nullptr},
                {"truncation", "disabled"},
                {"usage", nullptr},
                {"metadata", Json::object()}};
    if (context_.echo) out.update(*context_.echo);
    return out;
  }

  Json complete(const ApiAnswer& answer) const {
    const Generation& g = answer.result;
    const bool cut = is_cut(answer);
    Json output = Json::array();
    for (const AnswerPart& part : answer.parts) {
      const bool last = &part == &answer.parts.back();
      output.push_back(item(part, cut && last ? "incomplete" : "completed", answer.logprobs));
    }
    Json out = response(cut ? "incomplete" : "completed", std::move(output));
    if (cut) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    out["usage"] = {{"input_tokens", g.prompt_tokens},
                    {"input_tokens_details", {{"cached_tokens", g.reused_tokens}}},
                    {"output_tokens", answer.answer_tokens},
                    {"output_tokens_details", {{"reasoning_tokens", g.reasoning_tokens}}},
                    {"total_tokens", g.prompt_tokens + answer.answer_tokens}};
    return out;
  }

  static bool is_cut(const ApiAnswer& answer) { return finish_reason_name(answer.result.finish) == "length"; }

  static std::string item_id(const AnswerPart& part) {
    switch (part.kind) {
      case AnswerPart::Kind::kReasoning:
        return "rs_" + part.id;
      case AnswerPart::Kind::kText:
        return "msg_" + part.id;
      case AnswerPart::Kind::kCall:
        return "fc_" + part.id;
    }
    return {};
  }

  // An item with what it holds so far. The log-probabilities are of a text.
  Json item(const AnswerPart& part, const char* status, std::span<const Sampled> logprobs) const {
    switch (part.kind) {
      case AnswerPart::Kind::kReasoning: {
        Json content = Json::array();
        if (!part.text.empty()) content.push_back({{"type", "reasoning_text"}, {"text", part.text}});
        return {{"id", item_id(part)}, {"type", "reasoning"},          {"summary", Json::array()},
                {"content", content},  {"encrypted_content", nullptr}, {"status", status}};
      }
      case AnswerPart::Kind::kText: {
        Json content = Json::array();
        if (!part.text.empty()) content.push_back(text_part(part.text, logprobs));
        return {{"id", item_id(part)},
                {"type", "message"},
                {"status", status},
                {"role", "assistant"},
                {"content", content}};
      }
      case AnswerPart::Kind::kCall:
        return {{"id", item_id(part)},          {"type", "function_call"}, {"status", status},
                {"call_id", "call_" + part.id}, {"name", part.name},       {"arguments", part.text}};
    }
    return {};
  }

  Json text_part(const std::string& text, std::span<const Sampled> logprobs) const {
    return {
        {"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", logprobs_json(logprobs)}};
  }

  Json logprobs_json(std::span<const Sampled> tokens) const {
    Json out = Json::array();
    for (const Sampled& token : tokens) out.push_back(logprob_json(*context_.tokenizer, token));
    return out;
  }

  void begin_item(const AnswerPart& part, std::string& out) {
    open_ = true;
    shown_.clear();
    AnswerPart empty = part;
    empty.text.clear();
    send("response.output_item.added", {{"output_index", index_}, {"item", item(empty, "in_progress", {})}}, out);
    if (part.kind == AnswerPart::Kind::kText) {
      send("response.content_part.added", in_content(part, {{"part", text_part("", {})}}), out);
    }
  }

  void close(const AnswerPart& part, const char* status, std::string& out) {
    switch (part.kind) {
      case AnswerPart::Kind::kReasoning:
        send("response.reasoning_text.done", in_content(part, {{"text", part.text}}), out);
        break;
      case AnswerPart::Kind::kText:
        send("response.output_text.done", in_content(part, {{"text", part.text}, {"logprobs", logprobs_json(shown_)}}),
             out);
        send("response.content_part.done", in_content(part, {{"part", text_part(part.text, shown_)}}), out);
        break;
      case AnswerPart::Kind::kCall:
        send("response.function_call_arguments.done", in_item(part, {{"name", part.name}, {"arguments", part.text}}),
             out);
        break;
    }
    send("response.output_item.done", {{"output_index", index_}, {"item", item(part, status, shown_)}}, out);
    open_ = false;
    ++index_;
  }

  Json in_item(const AnswerPart& part, Json rest) const {
    Json out = {{"item_id", item_id(part)}, {"output_index", index_}};
    out.update(rest);
    return out;
  }
  Json in_content(const AnswerPart& part, Json rest) const {
    Json out = {{"item_id", item_id(part)}, {"output_index", index_}, {"content_index", 0}};
    out.update(rest);
    return out;
  }

  void send(const char* type, const Json& rest, std::string& out) {
    Json data = {{"type", type}, {"sequence_number", sequence_++}};
    data.update(rest);
    append_sse(out, type, data);
  }

  const WriterContext context_;
  const std::string id_ = new_id("resp_");
  const int64_t created_ = unix_time();
  int sequence_ = 0;
  int index_ = 0;  // of the item that is open, or of the next
  bool open_ = false;
  std::vector<Sampled> pending_, shown_;  // log-probabilities not yet sent, and those of the open text
};

}  // namespace

std::unique_ptr<AnswerWriter> responses_writer(WriterContext context) {
  return std::make_unique<ResponsesWriter>(std::move(context));
}

}  // namespace calla
