// Any bytes as the body of a request to each API: no crash; what is refused has an error that is JSON and names a
// status of its kind; what is accepted has options in range and a conversation that renders, or is refused by name.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "api/anthropic.h"
#include "api/openai_chat.h"
#include "api/openai_completions.h"
#include "api/openai_responses.h"
#include "base/check.h"
#include "text/chat_json.h"
#include "text/tool_types.h"

namespace {

using calla::ApiRequest;
using calla::ApiResult;
using calla::ApiStyle;

void check(const ApiResult<ApiRequest>& request, ApiStyle style) {
  if (!request) {
    CHECK(request.error().status == 400 && !request.error().message.empty(), "an error without its reason");
    const auto body = calla::parse_json(calla::error_body(style, request.error()));
    CHECK(body && body->contains("error"), "an error that is no JSON");
    return;
  }
  CHECK(calla::check_options(request->options), "an option out of range");
  CHECK(request->n >= 1 && request->n <= calla::kMaxChoices, "n out of range");
  const calla::ToolTypes types(request->conversation.tools);
  if (request->prompts.empty()) {
    (void)calla::ChatTemplate(calla::ChatTemplate::Version::kQwen36).render(request->conversation);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokenizer = calla::Tokenizer::load(CALLA_SOURCE_DIR "/models/bud");
  CHECK(tokenizer, "Bud's tokenizer is missing");
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check(calla::parse_chat(body, {}), ApiStyle::kOpenAi);
  check(calla::parse_completions(body, {}, *tokenizer), ApiStyle::kOpenAi);
  check(calla::parse_responses(body, {}), ApiStyle::kOpenAi);
  check(calla::parse_messages(body, {}), ApiStyle::kAnthropic);
  return 0;
}
