#pragma once

// Errors as the APIs tell them.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace calla {

// Whose shape an answer has.
enum class ApiStyle : uint8_t { kOpenAi, kAnthropic };

// By the path of a request: Anthropic's are /v1/messages and what is below it.
ApiStyle api_style(std::string_view path);

struct ApiError {
  int status = 400;     // of HTTP
  std::string message;  // one line
  std::string param;    // the field of the request that is to blame; "" for none
  std::string code;     // a word for programs, such as "context_length_exceeded"; "" for none
};

// kInvalid, kUnsupported: 400; kNotFound: 404; kBusy, kMemory: 503; others: 500. The field is the word that the message
// begins with, where the request has a member of that name.
ApiError api_error(const Error& error);
ApiError api_error(const Error& error, const nlohmann::ordered_json& request);

// The body of an answer with an error's status.
std::string error_body(ApiStyle style, const ApiError& error);

// The error alone: what error_body wraps, and what a stream reports in its middle.
nlohmann::ordered_json error_json(ApiStyle style, const ApiError& error);

}  // namespace calla
