#pragma once

// OpenAI's chat completions: POST /v1/chat/completions.

#include <memory>
#include <string_view>

#include "api/answer.h"
#include "api/request.h"

namespace calla {

// Reads what read_conversation and read_options read, and
//
//   n, stream, stream_options.include_usage, tool_choice ("auto", "none", "required", {function: {name}}),
//   parallel_tool_calls, response_format, reasoning_effort, thinking_budget (tokens; also in chat_template_kwargs)
//
// Unknown fields are ignored; of known ones, the wrong type is an error.
ApiResult<ApiRequest> parse_chat(std::string_view body, const ApiDefaults& defaults);

// Reasoning goes out as reasoning_content. logprobs.content has the tokens after the reasoning, markers of calls
// included.
std::unique_ptr<AnswerWriter> chat_writer(WriterContext context);

}  // namespace calla
