#pragma once

// What a request asks for, whichever API it came by.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "base/result.h"
#include "engine/generate.h"
#include "text/chat_template.h"
#include "text/prompt.h"

namespace calla {

// More is refused: each costs memory beyond its bytes.
inline constexpr size_t kMaxRequestMessages = 16384, kMaxTools = 1024;
inline constexpr int kMaxChoices = 16;

enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };
enum class AnswerFormat : uint8_t { kText, kJsonObject, kJsonSchema };

struct ApiRequest {
  // What the client calls the model; "" if it did not say. There is one model, so this is only repeated.
  std::string model;
  Conversation conversation;                  // tool_choice none leaves it without tools
  std::vector<std::vector<int32_t>> prompts;  // completions: instead of a conversation
  GenerateOptions options;
  int n = 1;  // answers to each prompt
  bool stream = false;
  bool include_usage = false;  // at the end of a stream
  int thinking_budget = -1;    // as in ServiceRequest
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool;                                 // kRequired: the one that must be called; "": any
  std::set<std::string, std::less<>> strict_tools;  // whose calls must be all that their schemas say
  bool parallel_tool_calls = true;
  AnswerFormat format = AnswerFormat::kText;
  std::shared_ptr<const nlohmann::ordered_json> schema;  // of kJsonSchema
  std::string format_field;                              // the field that asked for the format

  // Of single APIs.
  bool hide_thinking = false;                          // Anthropic: say that there was thinking, not what
  std::vector<std::string> echo_prompts;               // completions: what each answer to prompt i begins with
  std::shared_ptr<const nlohmann::ordered_json> echo;  // Responses: members of the request that its answer repeats
};

// What a request that says nothing gets.
struct ApiDefaults {
  GenerateOptions options;
  std::optional<bool> thinking;  // unset: the template's default
};

template <class T>
using ApiResult = tl::expected<T, ApiError>;

// A body as JSON, which must be an object.
ApiResult<nlohmann::ordered_json> parse_body(std::string_view body);

// Parses a body and reads it with `read`, whose errors then name the field that they are about.
ApiResult<ApiRequest> parse_request(
    std::string_view body, const std::function<Result<void>(const nlohmann::ordered_json&, ApiRequest&)>& read);

// ---- Readers that several APIs share ----
// A member that is absent or null leaves `out` as it is. `in` comes before the key in errors: "stream_options.".

Result<void> read_flag(const nlohmann::ordered_json& object, const char* key, bool& out, std::string_view in = "");
Result<void> read_string(const nlohmann::ordered_json& object, const char* key, std::string& out,
                         std::string_view in = "");
// An integer in [min, max].
Result<void> read_integer(const nlohmann::ordered_json& object, const char* key, int min, int max, int& out,
                          std::string_view in = "");
// stream_options.include_usage
Result<void> read_stream_options(const nlohmann::ordered_json& request, ApiRequest& out);

// model, stream, and the sampling options over the defaults.
Result<void> read_basics(const nlohmann::ordered_json& request, const ApiDefaults& defaults, ApiRequest& out);

// How much of an answer may be reasoning. "none" switches thinking off; the other words switch it on, where nothing
// else says whether to think: "minimal", "low" and "medium" with a budget of 512, 2,048 or 8,192 tokens, "high",
// "xhigh" and "max" without one. `path` names the field in errors.
Result<void> read_effort(const nlohmann::ordered_json& effort, std::string_view path, ApiRequest& out);

// What form the answer must have: {"type": "text" | "json_object" | "json_schema"}. A schema is the member `schema` of
// the format or, if `schema_in` is not "", of the format's member with that name. `path` names the format in errors.
Result<void> read_format(const nlohmann::ordered_json& format, const std::string& path, const char* schema_in,
                         ApiRequest& out);

// OpenAI's tool_choice: auto, none, required, or an object {"type": "function", …} with a name in `function` or, where
// that is null, in itself. `object` shows the form of that object in the message of an error.
Result<void> read_tool_choice(const nlohmann::ordered_json& choice, const char* function, std::string_view object,
                              ApiRequest& out);

// Whether a tool is strict; `in` is the place of `function` and ends with a dot.
Result<void> read_strict(const nlohmann::ordered_json& function, std::string_view in, ApiRequest& out);

// A tool as the template prints it, from the parts that the APIs name differently. Null members are left out.
std::string tool_line(const nlohmann::ordered_json& name, const nlohmann::ordered_json& description,
                      const nlohmann::ordered_json& parameters);

// Applies tool_choice once the tools are known: none hides them, a name must be that of a tool. Refuses what would have
// no effect or cannot be: a call that must be made without tools, or beside a response format; images.
Result<void> settle(ApiRequest& request);

}  // namespace calla
