#pragma once

// Anthropic's messages: POST /v1/messages, and the reading of /v1/messages/count_tokens.

#include <memory>
#include <string_view>

#include "api/answer.h"
#include "api/request.h"

namespace calla {

// Reads system, messages (also of role "system"), tools, tool_choice with disable_parallel_tool_use, max_tokens,
// stop_sequences, stream, thinking (type enabled with budget_tokens, adaptive, disabled; display), output_config
// (effort, format), output_format, and what read_options reads.
//
// Without `thinking` there is none, as at Anthropic. Content blocks: text, tool_use, tool_result, thinking,
// redacted_thinking (which nobody here can read, so it is passed over), image, and document with plain text. A
// tool_result with is_error begins with "Error: ", unless its first line speaks of an error anyway. Tools that
// run on Anthropic's servers are passed over: they have no input_schema. System texts that begin with "x-anthropic-"
// are dropped, as in read_conversation. A conversation must not end with the assistant: an answer is not continued.
ApiResult<ApiRequest> parse_messages(std::string_view body, const ApiDefaults& defaults);

std::unique_ptr<AnswerWriter> messages_writer(WriterContext context);

}  // namespace calla
