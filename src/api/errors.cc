#include "api/errors.h"

#include <nlohmann/json.hpp>

#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

int status_of(Error::Code code) {
  switch (code) {
    case Error::Code::kInvalid:
    case Error::Code::kUnsupported:
      return 400;
    case Error::Code::kNotFound:
      return 404;
    case Error::Code::kBusy:
    case Error::Code::kMemory:
      return 503;
    case Error::Code::kIo:
    case Error::Code::kCancelled:
      return 500;
  }
  return 500;
}

const char* type_of(ApiStyle style, int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return style == ApiStyle::kAnthropic ? "not_found_error" : "invalid_request_error";
    case 413:
      return style == ApiStyle::kAnthropic ? "request_too_large" : "invalid_request_error";
    case 503:
      return style == ApiStyle::kAnthropic ? "overloaded_error" : "server_error";
    default:
      if (status < 500) return "invalid_request_error";
      return style == ApiStyle::kAnthropic ? "api_error" : "server_error";
  }
}

}  // namespace

ApiStyle api_style(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  const bool anthropic = path == kMessages || (path.starts_with(kMessages) && path[kMessages.size()] == '/');
  return anthropic ? ApiStyle::kAnthropic : ApiStyle::kOpenAi;
}

ApiError api_error(const Error& error) {
  return {status_of(error.code), error.message, "", error.code == Error::Code::kBusy ? "overloaded" : ""};
}

ApiError api_error(const Error& error, const Json& request) {
  ApiError out = api_error(error);
  std::string path = error.message.substr(0, error.message.find(' '));
  if (path.ends_with(':')) path.pop_back();
  if (request.is_object() && request.contains(path.substr(0, path.find_first_of(".[")))) out.param = path;
  return out;
}

Json error_json(ApiStyle style, const ApiError& error) {
  if (style == ApiStyle::kAnthropic) return {{"type", type_of(style, error.status)}, {"message", error.message}};
  Json out = {
      {"message", error.message}, {"type", type_of(style, error.status)}, {"param", nullptr}, {"code", nullptr}};
  if (!error.param.empty()) out["param"] = error.param;
  if (!error.code.empty()) out["code"] = error.code;
  return out;
}

std::string error_body(ApiStyle style, const ApiError& error) {
  Json body = {{"error", error_json(style, error)}};
  if (style == ApiStyle::kAnthropic) body = {{"type", "error"}, {"error", error_json(style, error)}};
  return python_json(body);
}

}  // namespace calla
