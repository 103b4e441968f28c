#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "api/openai_responses.h"
#include "text/chat_json.h"
#include "text/chat_request.h"
#include "text/json_read.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

class Reader {
 public:
  Reader(const Json& request, ApiRequest& out) : request_(request), out_(out) {}

  Result<void> read() {
    CALLA_TRY(refuse_state());
    CALLA_TRY(read_integer(request_, "max_output_tokens", 1, INT32_MAX, out_.options.max_tokens));
    std::string instructions;
    CALLA_TRY(read_string(request_, "instructions", instructions));
    if (!instructions.empty()) add(text_message(ChatRole::kSystem, std::move(instructions)));
    CALLA_TRY(read_input());
    CALLA_TRY(read_tools());
    CALLA_TRY(
        read_tool_choice(json_member(request_, "tool_choice"), nullptr, "{\"type\": \"function\", \"name\": …}", out_));
    CALLA_TRY(read_flag(request_, "parallel_tool_calls", out_.parallel_tool_calls));
    const Json& reasoning = json_member(request_, "reasoning");
    if (!reasoning.is_null() && !reasoning.is_object()) return wrong_type("reasoning", "an object", reasoning);
    CALLA_TRY(read_effort(json_member(reasoning, "effort"), "reasoning.effort", out_));
    const Json& text = json_member(request_, "text");
    if (!text.is_null() && !text.is_object()) return wrong_type("text", "an object", text);
    CALLA_TRY(read_format(json_member(text, "format"), "text.format", "", out_));
    CALLA_TRY(read_include());
    keep_echo();
    return settle(out_);
  }

 private:
  Result<void> refuse_state() const {
    for (const char* key : {"previous_response_id", "conversation"}) {
      if (json_member(request_, key).is_null()) continue;
      return fail(
          Error::Code::kUnsupported,
          fmt::format("{} is not supported: nothing is stored here, send the whole conversation as input", key));
    }
    bool background = false;
    CALLA_TRY(read_flag(request_, "background", background));
    if (background) return fail(Error::Code::kUnsupported, "background is not supported: nothing is stored here");
    return {};
  }

  Result<void> read_include() {
    const Json& include = json_member(request_, "include");
    if (!include.is_null() && !include.is_array()) return wrong_type("include", "an array of strings", include);
    int& logprobs = out_.options.sampling.logprobs;
    for (const Json& what : include) {
      if (what == "message.output_text.logprobs") logprobs = std::max(logprobs, 0);
    }
    return {};
  }

  void keep_echo() {
    Json echo = Json::object();
    for (const char* key : {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning",
                            "temperature", "text", "tool_choice", "tools", "top_p", "user"}) {
      if (const Json& value = json_member(request_, key); !value.is_null()) echo[key] = value;
    }
    out_.echo = std::make_shared<const Json>(std::move(echo));
  }

  void add(ChatMessage message) { out_.conversation.messages.push_back(std::move(message)); }

  // The turn of the assistant that the next item belongs to.
  ChatMessage& turn() {
    auto& messages = out_.conversation.messages;
    if (messages.empty() || messages.back().role != ChatRole::kAssistant) {
      ChatMessage& m = messages.emplace_back();
      m.role = ChatRole::kAssistant;
      m.reasoning = "";
    }
    return messages.back();
  }

  Result<void> read_input() {
    const Json& input = json_member(request_, "input");
    if (input.is_string()) {
      add(text_message(ChatRole::kUser, input.get<std::string>()));
    } else if (input.is_array()) {
      CALLA_TRY(each_object(input, "input",
                            [&](const Json& item, const std::string& path) { return read_item(item, path); }));
    } else {
      return wrong_type("input", "a string or an array of items", input);
    }
    if (out_.conversation.messages.empty()) return invalid("input must hold at least one message");
    return {};
  }

  Result<void> read_item(const Json& item, const std::string& path) {
    const std::string_view type = json_text(json_member(item, "type"));
    if (type == "message" || (type.empty() && item.contains("role"))) return read_message(item, path);
    if (type == "reasoning") return read_reasoning(item, path);
    if (type == "function_call") {
      const Json& name = json_member(item, "name");
      if (!name.is_string()) return wrong_type(path + ".name", "a string", name);
      turn().tool_calls.push_back({name.get<std::string>(), read_arguments(json_member(item, "arguments"))});
      return {};
    }
    if (type == "function_call_output") {
      ChatMessage result;
      result.role = ChatRole::kTool;
      CALLA_TRY(read_parts(json_member(item, "output"), path + ".output", result.content));
      add(std::move(result));
      return {};
    }
    if (type == "item_reference") {
      return fail(Error::Code::kUnsupported, path + " refers to an item, and nothing is stored here: send the item");
    }
    if (type.empty()) return invalid(path + ".type is missing");
    return {};
  }

  Result<void> read_message(const Json& item, const std::string& path) {
    const std::string_view role = json_text(json_member(item, "role"));
    std::vector<ChatPart> parts;
    CALLA_TRY(read_parts(json_member(item, "content"), path + ".content", parts));
    if (role == "assistant") {
      auto& content = turn().content;
      content.insert(content.end(), std::make_move_iterator(parts.begin()), std::make_move_iterator(parts.end()));
      return {};
    }
    ChatMessage message;
    message.content = std::move(parts);
    if (role == "system" || role == "developer") {
      message.role = ChatRole::kSystem;
    } else if (role != "user") {
      return wrong_type(path + ".role", "system, developer, user or assistant", json_member(item, "role"));
    }
    add(std::move(message));
    return {};
  }

  Result<void> read_reasoning(const Json& item, const std::string& path) {
    // What was said is in the content; a summary stands in for it.
    const Json& content = json_member(item, "content");
    const Json& texts = content.empty() ? json_member(item, "summary") : content;
    if (!texts.is_null() && !texts.is_array()) return wrong_type(path + ".content", "an array", texts);
    std::string text;
    for (const Json& part : texts) text += json_text(json_member(part, "text"));
    // Reasoning begins a turn.
    if (const auto& messages = out_.conversation.messages;
        !messages.empty() && messages.back().role == ChatRole::kAssistant &&
        (!messages.back().content.empty() || !messages.back().tool_calls.empty())) {
      ChatMessage next;
      next.role = ChatRole::kAssistant;
      next.reasoning = "";
      add(std::move(next));
    }
    *turn().reasoning += text;
    return {};
  }

  static Result<void> read_parts(const Json& content, const std::string& path, std::vector<ChatPart>& parts) {
    return read_content(content, path, "a string or an array of parts", parts, read_part);
  }

  static Result<void> read_part(const Json& part, const std::string& path, std::vector<ChatPart>& parts) {
    const std::string_view type = json_text(json_member(part, "type"));
    if (type == "input_image" || type == "image_url") {
      parts.push_back({ChatPart::Kind::kImage, {}});
      return {};
    }
    const char* key = type == "refusal" ? "refusal" : "text";
    const Json& text = json_member(part, key);
    if (!text.is_string()) {
      if (type.ends_with("text") || type.empty()) return wrong_type(fmt::format("{}.{}", path, key), "a string", text);
      return fail(Error::Code::kUnsupported, fmt::format("{} of type \"{}\" cannot be read here", path, type));
    }
    parts.push_back({ChatPart::Kind::kText, text.get<std::string>()});
    return {};
  }

  Result<void> read_tools() {
    return each_object(json_member(request_, "tools"), "tools",
                       [&](const Json& tool, const std::string& path) -> Result<void> {
                         if (json_member(tool, "type") != "function") return {};
                         const Json& name = json_member(tool, "name");
                         if (!name.is_string()) return wrong_type(path + ".name", "a string", name);
                         CALLA_TRY(read_strict(tool, path + ".", out_));
                         out_.conversation.tools.push_back(
                             tool_line(name, json_member(tool, "description"), json_member(tool, "parameters")));
                         return {};
                       });
  }

  const Json& request_;
  ApiRequest& out_;
};

}  // namespace

ApiResult<ApiRequest> parse_responses(std::string_view body, const ApiDefaults& defaults) {
  return parse_request(body, [&](const Json& request, ApiRequest& out) -> Result<void> {
    CALLA_TRY(read_basics(request, defaults, out));
    CALLA_TRY(Reader(request, out).read());
    if (!out.conversation.thinking) out.conversation.thinking = defaults.thinking;
    return {};
  });
}

}  // namespace calla
