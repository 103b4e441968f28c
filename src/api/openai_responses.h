#pragma once

// OpenAI's responses: POST /v1/responses.

#include <memory>
#include <string_view>

#include "api/answer.h"
#include "api/request.h"

namespace calla {

// Reads input (a text or items), instructions, tools, tool_choice, parallel_tool_calls, reasoning.effort, text.format,
// max_output_tokens, top_logprobs, include (message.output_text.logprobs), stream, and what read_options reads.
//
// Items: messages (typed or not) of the roles system, developer, user and assistant; reasoning; function_call;
// function_call_output, a text or parts. Reasoning, text and calls that follow each other are one turn of the
// assistant. Other items, and tools that are no functions, belong to somebody's server and are passed over. Nothing is
// stored here, so previous_response_id, conversation, background and item_reference are errors.
ApiResult<ApiRequest> parse_responses(std::string_view body, const ApiDefaults& defaults);

// Reasoning goes out as reasoning_text.
std::unique_ptr<AnswerWriter> responses_writer(WriterContext context);

}  // namespace calla
