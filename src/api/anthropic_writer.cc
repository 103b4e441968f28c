#include <nlohmann/json.hpp>
#include <utility>

#include "api/anthropic.h"
#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

// Clients keep it with the thinking and send it back; the reasoning itself needs none here.
constexpr const char* kSignature = "calla";

Json usage(int prompt, int cached, int output) {
  return {{"input_tokens", prompt - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", output}};
}

// stop_reason and stop_sequence.
Json ending(const ApiAnswer& answer) {
  Json out = {{"stop_reason", "end_turn"}, {"stop_sequence", nullptr}};
  if (finish_reason_name(answer.result.finish) == "length") {
    out["stop_reason"] = "max_tokens";
  } else if (answer.has_call()) {
    out["stop_reason"] = "tool_use";
  } else if (answer.result.finish == FinishReason::kStopString) {
    out["stop_reason"] = "stop_sequence";
    out["stop_sequence"] = answer.result.stop;
  }
  return out;
}

class MessagesWriter final : public AnswerWriter {
 public:
  explicit MessagesWriter(WriterContext context) : context_(std::move(context)) {}

  void begin(int prompt_tokens, int cached, std::string& out) override {
    Json message = head();
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = usage(prompt_tokens, cached, 0);
    send({{"type", "message_start"}, {"message", std::move(message)}}, out);
    send({{"type", "ping"}}, out);
  }

  void event(int, const AnswerEvent& event, const ApiAnswer& answer, bool fresh, std::span<const Sampled>,
             std::string& out) override {
    const AnswerPart& part = answer.parts.back();
    if (fresh) {
      close(out);
      open_ = part.kind;
      send({{"type", "content_block_start"}, {"index", block_}, {"content_block", block(part, false)}}, out);
    }
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning:
        if (!context_.hide_thinking) delta({{"type", "thinking_delta"}, {"thinking", event.text}}, out);
        break;
      case AnswerEvent::Kind::kText:
        delta({{"type", "text_delta"}, {"text", event.text}}, out);
        break;
      case AnswerEvent::Kind::kCallArguments:
        delta({{"type", "input_json_delta"}, {"partial_json", event.text}}, out);
        break;
      case AnswerEvent::Kind::kCallBegin:
        break;
      case AnswerEvent::Kind::kCallEnd:
        close(out);
        break;
    }
  }

  void end(int, const ApiAnswer& answer, std::span<const Sampled>, std::string& out) override {
    close(out);
    send({{"type", "message_delta"},
          {"delta", ending(answer)},
          {"usage", usage(answer.result.prompt_tokens, answer.result.reused_tokens, answer.answer_tokens)}},
         out);
  }

  void finish(std::span<const ApiAnswer>, std::string& out) override { send({{"type", "message_stop"}}, out); }

  void fail(const ApiError& error, std::string& out) override {
    send({{"type", "error"}, {"error", error_json(ApiStyle::kAnthropic, error)}}, out);
  }

  std::string body(std::span<const ApiAnswer> answers) override {
    const ApiAnswer& answer = answers.front();
    Json out = head();
    out["content"] = Json::array();
    for (const AnswerPart& part : answer.parts) out["content"].push_back(block(part, true));
    out.update(ending(answer));
    out["usage"] = usage(answer.result.prompt_tokens, answer.result.reused_tokens, answer.answer_tokens);
    return python_json(out);
  }

 private:
  Json head() const { return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", context_.model}}; }

  // A content block, with what it holds or as it begins.
  Json block(const AnswerPart& part, bool whole) const {
    switch (part.kind) {
      case AnswerPart::Kind::kReasoning:
        return {{"type", "thinking"},
                {"thinking", whole && !context_.hide_thinking ? part.text : ""},
                {"signature", whole ? kSignature : ""}};
      case AnswerPart::Kind::kText:
        return {{"type", "text"}, {"text", whole ? part.text : ""}};
      case AnswerPart::Kind::kCall: {
        // The arguments are always an object.
        const Result<Json> input = parse_json(whole ? part.text : "{}");
        return {{"type", "tool_use"}, {"id", "toolu_" + part.id}, {"name", part.name}, {"input", *input}};
      }
    }
    return {};
  }

  static void send(const Json& data, std::string& out) { append_sse(out, json_type(data), data); }
  static std::string json_type(const Json& data) { return data["type"].get<std::string>(); }

  void delta(Json delta, std::string& out) const {
    send({{"type", "content_block_delta"}, {"index", block_}, {"delta", std::move(delta)}}, out);
  }

  void close(std::string& out) {
    if (!open_) return;
    if (open_ == AnswerPart::Kind::kReasoning) delta({{"type", "signature_delta"}, {"signature", kSignature}}, out);
    send({{"type", "content_block_stop"}, {"index", block_}}, out);
    open_.reset();
    ++block_;
  }

  const WriterContext context_;
  const std::string id_ = new_id("msg_");
  int block_ = 0;
  std::optional<AnswerPart::Kind> open_;
};

}  // namespace

std::unique_ptr<AnswerWriter> messages_writer(WriterContext context) {
  return std::make_unique<MessagesWriter>(std::move(context));
}

}  // namespace calla
