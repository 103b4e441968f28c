#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "engine/model.h"
#include "engine/service.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/router.h"

namespace calla {

// What the endpoints work with. All of it must outlive the router's calls.
struct Serving {
  Model& model;
  Service& service;
  RequestMetrics& metrics;
  std::string model_id;  // the name of the model in answers; requests may name any
  int64_t started = 0;   // when, in seconds since 1970
  std::function<HttpStats()> http;
};

// /health, /metrics, /v1/models, /v1/models/{model}, /tokenize, /detokenize.
void add_plain_routes(Router& router, const Serving& serving);

// JSON as the body of an answer.
HttpResponse json_response(int status, std::string body);

// An error in the shape of the API that `path` belongs to: Anthropic's below /v1/messages, else OpenAI's.
HttpResponse error_response(int status, std::string message, std::string_view path);

}  // namespace calla
