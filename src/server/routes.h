#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "api/session.h"
#include "engine/service.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/router.h"

namespace calla {

// What the endpoints work with. All of it must outlive the router's calls.
struct Serving {
  Api& api;
  Model& model;
  Service& service;
  RequestMetrics& metrics;
  std::string model_id;  // the name of the model in answers
  int64_t started = 0;   // when, in seconds since 1970
  std::function<HttpStats()> http;
};

// The APIs, /tokenize, /detokenize, /health and /metrics.
void add_routes(Router& router, const Serving& serving);

// An error in the shape of the API that `path` belongs to.
HttpResponse error_response(int status, std::string message, std::string_view path);

}  // namespace calla
