#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/anthropic.h"
#include "text/chat_json.h"
#include "text/chat_request.h"
#include "text/json_read.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBlocks = "a string or an array of blocks";

class Reader {
 public:
  Reader(const Json& request, ApiRequest& out) : request_(request), out_(out) {}

  Result<void> read() {
    CALLA_TRY(read_system());
    const Json& messages = json_member(request_, "messages");
    if (!messages.is_array()) return wrong_type("messages", "an array", messages);
    if (messages.empty()) return invalid("messages must hold at least one message");
    CALLA_TRY(each_object(messages, "messages",
                          [&](const Json& message, const std::string& path) { return read_message(message, path); }));
    if (json_member(messages.back(), "role") == "assistant") {
      return fail(Error::Code::kUnsupported,
                  "messages must end with the user: an answer that has begun is not continued here");
    }
    CALLA_TRY(read_tools());
    CALLA_TRY(read_tool_choice());
    CALLA_TRY(read_stop());
    CALLA_TRY(read_thinking());
    const Json& config = json_member(request_, "output_config");
    if (!config.is_null() && !config.is_object()) return wrong_type("output_config", "an object", config);
    if (out_.conversation.thinking == true && out_.thinking_budget < 0) {
      CALLA_TRY(read_effort(json_member(config, "effort"), "output_config.effort", out_));
    }
    CALLA_TRY(read_format(json_member(config, "format"), "output_config.format", "", out_));
    CALLA_TRY(read_format(json_member(request_, "output_format"), "output_format", "", out_));
    return settle(out_);
  }

 private:
  static Result<std::string> text_of(const Json& block, const char* key, const std::string& path) {
    const Json& text = json_member(block, key);
    if (!text.is_string()) return wrong_type(fmt::format("{}.{}", path, key), "a string", text);
    return text.get<std::string>();
  }

  Result<void> read_system() {
    const Json& system = json_member(request_, "system");
    if (system.is_null()) return {};
    ChatMessage message;
    message.role = ChatRole::kSystem;
    CALLA_TRY(read_parts(system, "system", message.content));
    add_system(std::move(message));
    return {};
  }

  void add_system(ChatMessage message) {
    if (drop_billing_headers(message) && message.content.empty()) return;
    out_.conversation.messages.push_back(std::move(message));
  }

  // A string, or blocks of which none has to do with tools.
  static Result<void> read_parts(const Json& content, const std::string& path, std::vector<ChatPart>& parts) {
    return read_content(content, path, kBlocks, parts, read_part);
  }

  static Result<void> read_part(const Json& block, const std::string& path, std::vector<ChatPart>& parts) {
    const std::string_view type = json_text(json_member(block, "type"));
    const Json& source = json_member(block, "source");
    if (type == "text") {
      CALLA_ASSIGN(std::string text, text_of(block, "text", path));
      parts.push_back({ChatPart::Kind::kText, std::move(text)});
    } else if (type == "image") {
      parts.push_back({ChatPart::Kind::kImage, {}});
    } else if (type == "document" && json_member(source, "type") == "text") {
      CALLA_ASSIGN(std::string text, text_of(source, "data", path + ".source"));
      parts.push_back({ChatPart::Kind::kText, std::move(text)});
    } else if (type == "document" && json_member(source, "type") == "content") {
      return read_parts(json_member(source, "content"), path + ".source.content", parts);
    } else {
      return fail(Error::Code::kUnsupported, fmt::format("{} of type \"{}\" cannot be read here", path, type));
    }
    return {};
  }

  Result<void> read_message(const Json& message, const std::string& path) {
    const Json& role = json_member(message, "role");
    const Json& content = json_member(message, "content");
    if (role == "user") return read_user(content, path + ".content");
    if (role == "assistant") return read_assistant(content, path + ".content");
    if (role != "system") return wrong_type(path + ".role", "user, assistant or system", role);
    ChatMessage system;
    system.role = ChatRole::kSystem;
    CALLA_TRY(read_parts(content, path + ".content", system.content));
    add_system(std::move(system));
    return {};
  }

  // Whether the first line of a result says that it is an error, as in "<tool_use_error>" and "TypeError: …".
  static bool speaks_of_error(const ChatMessage& result) {
    std::string line = result.content.empty() ? "" : result.content.front().text;
    line.resize(std::min(line.find('\n'), line.size()));
    std::ranges::transform(line, line.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return line.find("error") != line.npos;
  }

  // Results of tools are messages of their own, in the order of the blocks. The template has no place for is_error, so
  // the text says it.
  Result<void> read_user(const Json& content, const std::string& path) {
    ChatMessage user;
    if (!content.is_array()) {
      CALLA_TRY(read_parts(content, path, user.content));
      out_.conversation.messages.push_back(std::move(user));
      return {};
    }
    bool said = false;
    const auto read_block = [&](const Json& block, const std::string& at) -> Result<void> {
      if (json_member(block, "type") != "tool_result") return read_part(block, at, user.content);
      if (!user.content.empty()) out_.conversation.messages.push_back(std::exchange(user, {}));
      ChatMessage result;
      result.role = ChatRole::kTool;
      CALLA_TRY(read_parts(json_member(block, "content"), at + ".content", result.content));
      bool is_error = false;
      CALLA_TRY(read_flag(block, "is_error", is_error, at + "."));
      if (is_error && !speaks_of_error(result)) {
        result.content.insert(result.content.begin(), {ChatPart::Kind::kText, "Error: "});
      }
      out_.conversation.messages.push_back(std::move(result));
      said = true;
      return {};
    };
    CALLA_TRY(each_object(content, path, read_block));
    if (!said || !user.content.empty()) out_.conversation.messages.push_back(std::move(user));
    return {};
  }

  Result<void> read_assistant(const Json& content, const std::string& path) {
    ChatMessage message;
    message.role = ChatRole::kAssistant;
    message.reasoning = "";
    const auto read_block = [&](const Json& block, const std::string& at, auto& parts) -> Result<void> {
      const std::string_view type = json_text(json_member(block, "type"));
      if (type == "redacted_thinking") return {};
      if (type == "thinking") {
        CALLA_ASSIGN(const std::string text, text_of(block, "thinking", at));
        *message.reasoning += text;
        return {};
      }
      if (type != "tool_use") return read_part(block, at, parts);
      CALLA_ASSIGN(std::string name, text_of(block, "name", at));
      message.tool_calls.push_back({std::move(name), read_arguments(json_member(block, "input"))});
      return {};
    };
    CALLA_TRY(read_content(content, path, kBlocks, message.content, read_block));
    out_.conversation.messages.push_back(std::move(message));
    return {};
  }

  Result<void> read_tools() {
    return each_object(json_member(request_, "tools"), "tools",
                       [&](const Json& tool, const std::string& path) -> Result<void> {
                         const Json& schema = json_member(tool, "input_schema");
                         const Json& type = json_member(tool, "type");
                         if (schema.is_null() && !type.is_null() && type != "custom") return {};
                         if (!schema.is_object()) return wrong_type(path + ".input_schema", "an object", schema);
                         const Json& name = json_member(tool, "name");
                         if (!name.is_string()) return wrong_type(path + ".name", "a string", name);
                         CALLA_TRY(read_strict(tool, path + ".", out_));
                         out_.conversation.tools.push_back(tool_line(name, json_member(tool, "description"), schema));
                         return {};
                       });
  }

  Result<void> read_tool_choice() {
    const Json& choice = json_member(request_, "tool_choice");
    if (choice.is_null()) return {};
    if (!choice.is_object()) return wrong_type("tool_choice", "an object", choice);
    bool alone = false;
    CALLA_TRY(read_flag(choice, "disable_parallel_tool_use", alone, "tool_choice."));
    out_.parallel_tool_calls = !alone;
    const std::string_view type = json_text(json_member(choice, "type"));
    if (type == "none") {
      out_.tool_choice = ToolChoice::kNone;
    } else if (type == "any" || type == "tool") {
      out_.tool_choice = ToolChoice::kRequired;
      const Json& name = json_member(choice, "name");
      if (type == "tool" && !name.is_string()) return wrong_type("tool_choice.name", "a string", name);
      if (type == "tool") out_.tool = json_text(name);
    } else if (type != "auto") {
      return invalid("tool_choice.type must be auto, any, tool or none");
    }
    return {};
  }

  Result<void> read_stop() {
    const Json& stop = json_member(request_, "stop_sequences");
    if (stop.is_null()) return {};
    if (!stop.is_array()) return wrong_type("stop_sequences", "an array of strings", stop);
    for (size_t i = 0; i < stop.size(); ++i) {
      if (!stop[i].is_string()) return wrong_type(fmt::format("stop_sequences[{}]", i), "a string", stop[i]);
      out_.options.stop.push_back(stop[i].get<std::string>());
    }
    if (const auto fits = check_options(out_.options); !fits) {
      return invalid("stop_sequences: " + fits.error().message);
    }
    return {};
  }

  Result<void> read_thinking() {
    const Json& thinking = json_member(request_, "thinking");
    out_.conversation.thinking = false;
    if (thinking.is_null()) return {};
    if (!thinking.is_object()) return wrong_type("thinking", "an object", thinking);
    const std::string_view type = json_text(json_member(thinking, "type"));
    if (type == "disabled") return {};
    if (type != "enabled" && type != "adaptive") return invalid("thinking.type must be enabled, adaptive or disabled");
    out_.conversation.thinking = true;
    out_.hide_thinking = json_member(thinking, "display") == "omitted";
    return read_integer(thinking, "budget_tokens", 0, INT32_MAX, out_.thinking_budget, "thinking.");
  }

  const Json& request_;
  ApiRequest& out_;
};

}  // namespace

ApiResult<ApiRequest> parse_messages(std::string_view body, const ApiDefaults& defaults) {
  return parse_request(body, [&](const Json& request, ApiRequest& out) -> Result<void> {
    CALLA_TRY(read_basics(request, defaults, out));
    return Reader(request, out).read();
  });
}

}  // namespace calla
