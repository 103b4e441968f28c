#include "text/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/chat_json.h"
#include "text/json_read.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

void add_arguments(const Json& object, std::vector<ChatArgument>& out) {
  for (const auto& [name, value] : object.items()) {
    const bool is_json = !value.is_string();
    out.push_back({name, is_json ? python_json(value) : value.get<std::string>(), is_json});
  }
}

class Reader {
 public:
  Reader(const Json& request, ChatRules rules) : request_(request), lenient_(rules == ChatRules::kLenient) {}

  Result<Conversation> read() {
    if (!request_.is_object()) return wrong_type("request", "an object", request_);
    CALLA_TRY(read_options());
    CALLA_TRY(read_tools());
    CALLA_TRY(each_object(json_member(request_, "messages"), "messages",
                          [&](const Json& message, const auto& path) { return read_message(message, path); }));
    return std::move(out_);
  }

 private:
  // A flag of the template, from chat_template_kwargs or beside it.
  Result<std::optional<bool>> flag(const char* name) const {
    const Json& inner = json_member(json_member(request_, "chat_template_kwargs"), name);
    const Json& value = inner.is_null() ? json_member(request_, name) : inner;
    if (value.is_null()) return std::nullopt;
    if (!value.is_boolean())
      return wrong_type(fmt::format("{}{}", inner.is_null() ? "" : "chat_template_kwargs.", name), "a boolean", value);
    return value.get<bool>();
  }

  Result<void> read_options() {
    const Json& kwargs = json_member(request_, "chat_template_kwargs");
    if (!kwargs.is_object() && !kwargs.is_null()) return wrong_type("chat_template_kwargs", "an object", kwargs);
    CALLA_ASSIGN(out_.thinking, flag("enable_thinking"));
    if (lenient_ && !out_.thinking && json_text(json_member(request_, "reasoning_effort")) == "none")
      out_.thinking = false;
    CALLA_ASSIGN(const auto preserve, flag("preserve_thinking"));
    CALLA_ASSIGN(const auto vision_id, flag("add_vision_id"));
    CALLA_ASSIGN(const auto generate, flag("add_generation_prompt"));
    out_.preserve_thinking = preserve.value_or(false);
    out_.add_vision_id = vision_id.value_or(false);
    out_.add_generation_prompt = generate.value_or(true);
    return {};
  }

  Result<void> read_tools() {
    return each_object(json_member(request_, "tools"), "tools", [&](const Json& tool, const auto&) -> Result<void> {
      const Json& type = json_member(tool, "type");
      if (lenient_ && !type.is_null() && json_text(type) != "function") return {};
      out_.tools.push_back(python_json(tool));
      return {};
    });
  }

  Result<ChatRole> read_role(const Json& role, const std::string& path) const {
    const std::string_view name = json_text(role);
    if (name == "system" || (lenient_ && name == "developer")) return ChatRole::kSystem;
    if (name == "user") return ChatRole::kUser;
    if (name == "assistant") return ChatRole::kAssistant;
    if (name == "tool") return ChatRole::kTool;
    return invalid(fmt::format("{}.role is {}; expected system, user, assistant or tool", path,
                               role.is_string() ? fmt::format("\"{}\"", name) : std::string(json_type_name(role))));
  }

  Result<void> read_message(const Json& message, const std::string& path) {
    ChatMessage m;
    CALLA_ASSIGN(m.role, read_role(json_member(message, "role"), path));
    const auto add_part = [&](const Json& json, const std::string& at, auto& parts) -> Result<void> {
      CALLA_ASSIGN(ChatPart part, read_part(json, at));
      parts.push_back(std::move(part));
      return {};
    };
    CALLA_TRY(read_content(json_member(message, "content"), path + ".content", "a string, an array of parts or null",
                           m.content, add_part));
    if (m.role == ChatRole::kAssistant) {
      read_reasoning(message, m);
      CALLA_TRY(read_calls(json_member(message, "tool_calls"), path + ".tool_calls", m));
    }
    if (m.role == ChatRole::kSystem) {
      const auto media = std::find_if(m.content.begin(), m.content.end(),
                                      [](const ChatPart& p) { return p.kind != ChatPart::Kind::kText; });
      if (media != m.content.end()) {
        return invalid(fmt::format("{}.content[{}]: a system message cannot contain images or videos", path,
                                   media - m.content.begin()));
      }
      if (lenient_ && drop_billing_headers(m) && m.content.empty()) return {};
    }
    out_.messages.push_back(std::move(m));
    return {};
  }

  // The template's order of questions: a part with an image key is an image even if it also has a text.
  Result<ChatPart> read_part(const Json& part, const std::string& path) const {
    const std::string_view type = json_text(json_member(part, "type"));
    constexpr auto kImage = ChatPart::Kind::kImage;
    constexpr auto kVideo = ChatPart::Kind::kVideo;
    if (part.contains("image") || part.contains("image_url") || type == "image") return ChatPart{kImage, {}};
    if (part.contains("video") || type == "video") return ChatPart{kVideo, {}};
    const char* text_key = "text";
    if (!part.contains("text") && lenient_) {
      if (type == "image_url" || type == "input_image") return ChatPart{kImage, {}};
      if (type == "video_url" || type == "input_video") return ChatPart{kVideo, {}};
      if (type == "refusal") text_key = "refusal";
    }
    if (!part.contains(text_key)) {
      if (type.empty() || type.ends_with("text")) {
        return invalid(fmt::format("{}.text is missing, and it is no image or video", path));
      }
      return invalid(fmt::format("{}.type \"{}\" is not supported; expected text, image_url or video", path, type));
    }
    const Json& text = json_member(part, text_key);
    if (!text.is_string()) return wrong_type(fmt::format("{}.{}", path, text_key), "a string", text);
    return ChatPart{ChatPart::Kind::kText, text.get<std::string>()};
  }

  // The template takes reasoning_content only if it is a string and ignores anything else there.
  void read_reasoning(const Json& message, ChatMessage& m) const {
    const Json& official = json_member(message, "reasoning_content");
    const Json& alias = json_member(message, "reasoning");
    if (official.is_string()) {
      m.reasoning = official.get<std::string>();
    } else if (lenient_ && !json_text(alias).empty()) {
      m.reasoning = json_text(alias);
    }
  }

  Result<void> read_calls(const Json& calls, const std::string& path, ChatMessage& m) const {
    return each_object(calls, path, [&](const Json& outer, std::string at) -> Result<void> {
      const Json* call = &outer;
      if (const auto inner = call->find("function"); inner != call->end()) {
        call = &*inner;
        at += ".function";
        if (!call->is_object()) return wrong_type(at, "an object", *call);
      }
      const Json& name = json_member(*call, "name");
      if (!name.is_string()) return wrong_type(at + ".name", "a string", name);
      ChatToolCall& out = m.tool_calls.emplace_back();
      out.name = name.get<std::string>();
      if (const auto arguments = call->find("arguments"); arguments != call->end()) {
        if (!lenient_ && !arguments->is_object()) return wrong_type(at + ".arguments", "an object", *arguments);
        out.arguments = read_arguments(*arguments);
      }
      return {};
    });
  }

  const Json& request_;
  const bool lenient_;
  Conversation out_;
};

}  // namespace

Result<void> read_content(const Json& content, const std::string& path, std::string_view expected,
                          std::vector<ChatPart>& parts, const ReadPart& read_part) {
  if (content.is_null()) return {};
  if (content.is_string()) {
    parts.push_back({ChatPart::Kind::kText, content.get<std::string>()});
    return {};
  }
  if (!content.is_array()) return wrong_type(path, expected, content);
  return each_object(content, path,
                     [&](const Json& part, const std::string& at) { return read_part(part, at, parts); });
}

std::vector<ChatArgument> read_arguments(const Json& arguments) {
  std::vector<ChatArgument> out;
  if (arguments.is_object()) {
    add_arguments(arguments, out);
    return out;
  }
  if (arguments.is_null()) return out;
  const std::string raw = arguments.is_string() ? arguments.get<std::string>() : python_json(arguments);
  if (raw.find_first_not_of(" \t\r\n") == raw.npos) return out;
  const auto parsed = parse_json(raw);
  if (parsed && parsed->is_object()) {
    add_arguments(*parsed, out);
  } else if (!parsed || !parsed->is_null()) {
    out.push_back({"arguments", raw, false});
  }
  return out;
}

bool drop_billing_headers(ChatMessage& system) {
  return std::erase_if(system.content, [](const ChatPart& p) { return p.text.starts_with("x-anthropic-"); }) > 0;
}

Result<Conversation> read_conversation(const Json& request, ChatRules rules) {
  if (deeper_than(request, kMaxJsonDepth))
    return invalid(fmt::format("request: nested deeper than {} levels", kMaxJsonDepth));
  return Reader(request, rules).read();
}

Result<Conversation> parse_conversation(std::string_view json, ChatRules rules) {
  auto request = parse_json(json);
  if (!request) return invalid(fmt::format("request: {}", request.error().message));
  return Reader(*request, rules).read();
}

}  // namespace calla
