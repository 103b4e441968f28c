#include "api/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/request_options.h"
#include "text/chat_json.h"
#include "text/json_read.h"
#include "text/tool_types.h"

namespace calla {

using Json = nlohmann::ordered_json;

ApiResult<Json> parse_body(std::string_view body) {
  Result<Json> parsed = parse_json(body);
  if (!parsed) return tl::unexpected(ApiError{400, "the body is " + parsed.error().message, "", ""});
  if (!parsed->is_object()) return tl::unexpected(ApiError{400, "the body must be a JSON object", "", ""});
  return *std::move(parsed);
}

ApiResult<ApiRequest> parse_request(std::string_view body,
                                    const std::function<Result<void>(const Json&, ApiRequest&)>& read) {
  ApiResult<Json> json = parse_body(body);
  if (!json) return tl::unexpected(json.error());
  ApiRequest out;
  if (const Result<void> result = read(*json, out); !result) {
    return tl::unexpected(api_error(result.error(), *json));
  }
  return out;
}

Result<void> read_flag(const Json& object, const char* key, bool& out, std::string_view in) {
  const Json& value = json_member(object, key);
  if (value.is_null()) return {};
  if (!value.is_boolean()) return wrong_type(fmt::format("{}{}", in, key), "true or false", value);
  out = value.get<bool>();
  return {};
}

Result<void> read_string(const Json& object, const char* key, std::string& out, std::string_view in) {
  const Json& value = json_member(object, key);
  if (value.is_null()) return {};
  if (!value.is_string()) return wrong_type(fmt::format("{}{}", in, key), "a string", value);
  out = value.get<std::string>();
  return {};
}

Result<void> read_integer(const Json& object, const char* key, int min, int max, int& out, std::string_view in) {
  const Json& value = json_member(object, key);
  if (value.is_null()) return {};
  const std::string path = fmt::format("{}{}", in, key);
  if (!value.is_number_integer()) return wrong_type(path, "a whole number", value);
  const bool large = value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX;
  const int64_t number = large ? INT64_MAX : value.get<int64_t>();
  if (number < min || number > max) return invalid(fmt::format("{} is {}, expected {} to {}", path, number, min, max));
  out = static_cast<int>(number);
  return {};
}

Result<void> read_stream_options(const Json& request, ApiRequest& out) {
  const Json& options = json_member(request, "stream_options");
  if (!options.is_null() && !options.is_object()) return wrong_type("stream_options", "an object", options);
  return read_flag(options, "include_usage", out.include_usage, "stream_options.");
}

Result<void> read_basics(const Json& request, const ApiDefaults& defaults, ApiRequest& out) {
  out.options = defaults.options;
  CALLA_TRY(read_string(request, "model", out.model));
  CALLA_TRY(read_flag(request, "stream", out.stream));
  CALLA_TRY(read_options(request, out.options));
  // To the engine, 0 is no limit.
  for (const char* key : {"max_tokens", "max_completion_tokens", "max_output_tokens"}) {
    int limit = 1;
    if (json_member(request, key).is_number_integer()) CALLA_TRY(read_integer(request, key, 1, INT32_MAX, limit));
  }
  return check_options(out.options);
}

Result<void> read_effort(const Json& effort, std::string_view path, ApiRequest& out) {
  if (effort.is_null()) return {};
  if (!effort.is_string()) return wrong_type(path, "a string", effort);
  const std::string_view word = json_text(effort);
  struct Budget {
    std::string_view word;
    int tokens;
  };
  constexpr Budget kBudgets[] = {{"none", 0},  {"minimal", 512}, {"low", 2048}, {"medium", 8192},
                                 {"high", -1}, {"xhigh", -1},    {"max", -1}};
  const auto* known = std::find_if(std::begin(kBudgets), std::end(kBudgets), [&](auto& b) { return b.word == word; });
  if (known == std::end(kBudgets)) {
    return invalid(fmt::format("{} is \"{}\"; expected none, minimal, low, medium, high, xhigh or max", path, word));
  }
  const bool thinks = word != "none";
  if (!out.conversation.thinking) out.conversation.thinking = thinks;
  if (thinks) out.thinking_budget = known->tokens;
  return {};
}

Result<void> read_format(const Json& format, const std::string& path, const char* schema_in, ApiRequest& out) {
  if (format.is_null()) return {};
  if (!format.is_object()) return wrong_type(path, "an object", format);
  const std::string_view type = json_text(json_member(format, "type"));
  if (type == "text") return {};
  out.format_field = path;
  if (type == "json_object") {
    out.format = AnswerFormat::kJsonObject;
    return {};
  }
  if (type != "json_schema") {
    return invalid(fmt::format("{}.type must be text, json_object or json_schema", path));
  }
  const std::string inner = *schema_in == '\0' ? path : fmt::format("{}.{}", path, schema_in);
  const Json& holder = *schema_in == '\0' ? format : json_member(format, schema_in);
  const Json& schema = json_member(holder, "schema");
  if (!schema.is_object() && !schema.is_boolean()) return wrong_type(inner + ".schema", "an object", schema);
  out.format = AnswerFormat::kJsonSchema;
  out.schema = std::make_shared<const Json>(schema);
  return {};
}

Result<void> read_tool_choice(const Json& choice, const char* function, std::string_view object, ApiRequest& out) {
  if (choice.is_null() || choice == "auto") return {};
  if (choice == "none") {
    out.tool_choice = ToolChoice::kNone;
    return {};
  }
  const Json& name = json_member(function == nullptr ? choice : json_member(choice, function), "name");
  if (choice != "required" && !(json_member(choice, "type") == "function" && name.is_string())) {
    return invalid(fmt::format("tool_choice must be auto, none, required or {}", object));
  }
  out.tool_choice = ToolChoice::kRequired;
  out.tool = json_text(name);
  return {};
}

Result<void> read_strict(const Json& function, std::string_view in, ApiRequest& out) {
  bool strict = false;
  CALLA_TRY(read_flag(function, "strict", strict, in));
  if (strict) out.strict_tools.emplace(json_text(json_member(function, "name")));
  return {};
}

std::string tool_line(const Json& name, const Json& description, const Json& parameters) {
  Json function = {{"name", name}};
  if (!description.is_null()) function["description"] = description;
  if (!parameters.is_null()) function["parameters"] = parameters;
  return python_json({{"type", "function"}, {"function", std::move(function)}});
}

Result<void> settle(ApiRequest& request) {
  Conversation& c = request.conversation;
  if (c.messages.size() > kMaxRequestMessages) {
    return invalid(fmt::format("messages: {} are too many, at most {}", c.messages.size(), kMaxRequestMessages));
  }
  if (c.tools.size() > kMaxTools)
    return invalid(fmt::format("tools: {} are too many, at most {}", c.tools.size(), kMaxTools));
  for (ChatMessage& m : c.messages) {
    for (ChatPart& part : m.content) {
      if (part.kind == ChatPart::Kind::kText) continue;
      if (m.role != ChatRole::kTool) {
        return fail(Error::Code::kUnsupported, "messages: images and videos are not supported, only text is read here");
      }
      // A tool may return one at any time, and then every later request holds it.
      part = {ChatPart::Kind::kText, "[a picture or video that cannot be shown here]"};
    }
  }
  if (request.tool_choice == ToolChoice::kRequired) {
    if (c.tools.empty()) return invalid("tool_choice asks for a call, and there are no tools that could be called");
    if (!request.tool.empty() && !ToolTypes(c.tools).knows(request.tool)) {
      return invalid(fmt::format("tool_choice names \"{}\", which is none of the tools", request.tool));
    }
    if (request.format != AnswerFormat::kText) {
      return invalid("tool_choice asks for a call, and the response format for a JSON answer: choose one");
    }
  }
  if (request.tool_choice == ToolChoice::kNone) c.tools.clear();
  return {};
}

}  // namespace calla
