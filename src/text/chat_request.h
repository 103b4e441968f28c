#pragma once

// From a request in the form of OpenAI's chat completions to a conversation that the template can render.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat_template.h"

namespace calla {

// Reads the fields that shape the prompt and ignores all others (sampling, streaming, names, ids):
//
//   messages             role, content (a string, null, absent, or parts), reasoning_content, tool_calls
//   tools                printed for the model as given, key order included
//   add_generation_prompt   true by default
//   chat_template_kwargs {enable_thinking, preserve_thinking, add_vision_id}; also accepted beside it, where the inner
//   one wins
//
// A field of the wrong type is refused by name, as in "messages[3].content[0].text must be a string, not a number",
// even where the official template would print the Python value, or ignore it. Otherwise kOfficial accepts what the
// official template accepts.
//
// kLenient also takes what clients are known to send:
//   * role "developer" is "system"; a content part of a system message that begins with "x-anthropic-" is dropped (a
//   billing header
//     that differs per session, which would make every prompt differ from its first token on), and so is the message if
//     nothing else was in it;
//   * `reasoning`, if it is not empty, stands in for a missing reasoning_content;
//   * parts of type video_url, input_video and input_image (by file) are placeholders like image_url; "refusal" parts
//   are text;
//   * arguments in a string are parsed. An empty string and null are no arguments. A text that is not a JSON object
//   becomes a
//     single parameter called "arguments" that holds it as it is: a call that went wrong once must not make every later
//     request of its conversation fail;
//   * tools whose type is not "function" are skipped: they run on somebody's server, not here;
//   * reasoning_effort "none" means enable_thinking false, where that is not given.
//
// The rules that concern the conversation as a whole (places of system messages, the missing query) are render's.
Result<Conversation> read_conversation(const nlohmann::ordered_json& request, ChatRules rules = ChatRules::kLenient);

// The same from JSON text.
Result<Conversation> parse_conversation(std::string_view json, ChatRules rules = ChatRules::kLenient);

// Appends the parts of a message's content: a string is one, an array's elements are what read_part(element, "PATH[i]",
// parts) appends, null is none. expected: what content of another type should have been.
using ReadPart = std::function<Result<void>(const nlohmann::ordered_json&, const std::string&, std::vector<ChatPart>&)>;
Result<void> read_content(const nlohmann::ordered_json& content, const std::string& path, std::string_view expected,
                          std::vector<ChatPart>& parts, const ReadPart& read_part);

// The arguments of a call, under the lenient rules. Accepts everything.
std::vector<ChatArgument> read_arguments(const nlohmann::ordered_json& arguments);

// Drops the parts of a system message that begin with "x-anthropic-"; true if there were any.
bool drop_billing_headers(ChatMessage& system);

}  // namespace calla
