#pragma once

// OpenAI's older completions: POST /v1/completions. Raw text goes on, without the chat template.

#include <memory>
#include <string_view>

#include "api/answer.h"
#include "api/request.h"
#include "text/tokenizer.h"

namespace calla {

// Reads what read_options reads, and prompt (a text, several, token ids, or several lists of them; markers in a text
// are control tokens), suffix, echo, n, stream, stream_options.include_usage. max_tokens is 16 unless it is given, as
// at OpenAI. best_of beyond n is an error. suffix fills the middle between the prompt and itself, with the markers that
// the model was trained with; an error if the tokenizer has none.
ApiResult<ApiRequest> parse_completions(std::string_view body, const ApiDefaults& defaults, const Tokenizer& tokenizer);

std::unique_ptr<AnswerWriter> completions_writer(WriterContext context);

}  // namespace calla
