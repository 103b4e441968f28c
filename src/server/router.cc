#include "server/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "text/utf8.h"

namespace calla {
namespace {

constexpr int kClientGone = 499;  // for the log and the metrics; nobody is sent it

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> parts;
  for (size_t from = 1; from <= path.size();) {
    const size_t to = std::min(path.find('/', from), path.size());
    parts.emplace_back(path.substr(from, to - from));
    from = to + 1;
  }
  return parts;
}

bool is_parameter(std::string_view part) {
  return part.starts_with('{');
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size() || hex_digit(text[i + 1]) < 0 || hex_digit(text[i + 2]) < 0) return std::nullopt;
      c = static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    }
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) return std::nullopt;
    out += c;
  }
  if (!valid_utf8(out)) return std::nullopt;
  return out;
}

// CallReply

CallReply::CallReply(const Router& router, const HttpRequest& request, std::string route, bool quiet,
                     std::shared_ptr<HttpReply> reply)
    : router_(router),
      reply_(std::move(reply)),
      id_(request.id),
      arrived_(request.arrived),
      method_(request.method),
      path_(request.path),
      route_(std::move(route)),
      quiet_(quiet),
      headers_(router.access_.cors(request)) {
  headers_.push_back({"X-Request-Id", fmt::format("{}", id_)});
  headers_.push_back({"X-Content-Type-Options", "nosniff"});
}

CallReply::~CallReply() {
  ended(500);
}

HttpResponse CallReply::dressed(HttpResponse response) const {
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  return response;
}

void CallReply::send(HttpResponse response) {
  const int status = response.status;
  reply_->send(dressed(std::move(response)));
  ended(status);
}

void CallReply::begin(HttpResponse head, HttpFiller filler) {
  {
    const std::scoped_lock lock(mutex_);
    status_ = head.status;
  }
  reply_->begin(dressed(std::move(head)), std::move(filler));
}

void CallReply::finish() {
  reply_->finish();
  ended(status_);
}

void CallReply::hold(HttpResponse head, HttpFiller filler, std::chrono::milliseconds wait) {
  reply_->hold(dressed(std::move(head)), std::move(filler), wait);
}

void CallReply::on_close(std::function<void()> closed) {
  {
    const std::scoped_lock lock(mutex_);
    if (!gone_) {
      closed_ = std::move(closed);
      return;
    }
  }
  closed();
}

void CallReply::client_gone() {
  std::function<void()> closed;
  int status = kClientGone;
  {
    const std::scoped_lock lock(mutex_);
    gone_ = true;
    closed.swap(closed_);
    if (complete_ && status_ != 0) status = status_;
  }
  ended(status);
  if (closed) closed();
}

void CallReply::complete() {
  const std::scoped_lock lock(mutex_);
  complete_ = true;
}

void CallReply::note(std::string_view name, Log::Value value) {
  const std::scoped_lock lock(mutex_);
  notes_.emplace_back(name, std::move(value));
}

void CallReply::ended(int status) {
  std::vector<Log::Field> fields;
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(logged_, true)) return;
    fields = std::move(notes_);
  }
  const double seconds = seconds_since(arrived_);
  router_.metrics_.request(route_, status, seconds);
  fields.insert(fields.begin(),
                {{"method", method_}, {"path", path_}, {"status", int64_t{status}}, {"seconds", seconds}});
  const LogLevel level = status >= 500            ? LogLevel::kWarning
                         : quiet_ && status < 400 ? LogLevel::kDebug
                                                  : LogLevel::kInfo;
  router_.log_.write(level, id_, "request", fields);
}

// Router

Router::Router(Access access, Log& log, RequestMetrics& metrics, Refuse refuse)
    : access_(std::move(access)), log_(log), metrics_(metrics), refuse_(std::move(refuse)) {}

void Router::add(std::string method, std::string pattern, Handler handler, Flags flags) {
  std::vector<std::string> parts = split(pattern);
  routes_.push_back({std::move(method), std::move(pattern), std::move(parts), std::move(handler), flags});
}

std::optional<std::vector<std::string>> Router::match(const Route& route, std::string_view path) {
  const std::vector<std::string> parts = split(path);
  if (parts.size() != route.parts.size()) return std::nullopt;
  std::vector<std::string> params;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!is_parameter(route.parts[i])) {
      if (parts[i] != route.parts[i]) return std::nullopt;
      continue;
    }
    auto decoded = percent_decoded(parts[i]);
    if (!decoded || decoded->empty()) return std::nullopt;
    params.push_back(std::move(*decoded));
  }
  return params;
}

// Base URLs of clients end in /v1 for OpenAI's API and do not for Anthropic's.
std::string Router::hint(std::string_view path) const {
  const bool twice = path.starts_with("/v1/v1/");
  const std::string other = twice ? std::string(path.substr(3)) : fmt::format("/v1{}", path);
  const bool known = std::any_of(routes_.begin(), routes_.end(), [&](const Route& r) { return r.pattern == other; });
  if (!known) return "";
  return fmt::format("; the client's base URL should {} in /v1", twice ? "not end" : "end");
}

HttpResponse Router::refuse(int status, std::string message, std::string_view path) const {
  metrics_.request("refused", status, 0);
  log_.write(LogLevel::kInfo, 0, "refused",
             {{"path", std::string(path)}, {"status", int64_t{status}}, {"why", message}});
  return refuse_(status, std::move(message), path);
}

std::optional<HttpResponse> Router::admit(const HttpRequest& head) const {
  const bool open = head.method == "OPTIONS" || std::any_of(routes_.begin(), routes_.end(), [&](const Route& route) {
                      return route.flags.open && match(route, head.path);
                    });
  auto refusal = access_.check(head, !open);
  if (!refusal) return std::nullopt;
  HttpResponse response = refuse(refusal->status, std::move(refusal->message), head.path);
  response.headers = std::move(refusal->headers);
  // A page must be able to read that its key is wrong.
  for (HttpHeader& h : access_.cors(head)) response.headers.push_back(std::move(h));
  return response;
}

void Router::handle(HttpRequest request, std::shared_ptr<HttpReply> reply) const {
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  const Route* found = nullptr;
  std::string allowed;
  std::vector<std::string> params;
  for (const Route& route : routes_) {
    auto matched = match(route, request.path);
    if (!matched) continue;
    allowed += (allowed.empty() ? "" : ", ") + route.method + (route.method == "GET" ? ", HEAD" : "");
    if (route.method != method || found != nullptr) continue;
    found = &route;
    params = std::move(*matched);
  }
  auto answer = std::make_shared<CallReply>(*this, request, found ? found->pattern : "other",
                                            found != nullptr && found->flags.quiet, reply);
  reply->on_close([call = std::weak_ptr(answer)] {
    if (const auto c = call.lock()) c->client_gone();
  });
  if (found != nullptr) {
    const uint64_t id = request.id;
    const std::string path = request.path;
    try {
      found->handler({std::move(request), std::move(params), answer});
    } catch (const std::exception& e) {  // memory ran out
      log_.write(LogLevel::kError, id, e.what());
      answer->send(refuse_(500, "the server ran into an error of its own", path));
    }
  } else if (request.method == "OPTIONS") {
    answer->send(access_.preflight(request, allowed.empty() ? "GET, HEAD, POST" : allowed));
  } else if (allowed.empty()) {
    answer->send(refuse_(404, fmt::format("there is nothing at {}{}", request.path, hint(request.path)), request.path));
  } else {
    HttpResponse response =
        refuse_(405, fmt::format("{} takes {}, not {}", request.path, allowed, request.method), request.path);
    response.headers.push_back({"Allow", allowed + ", OPTIONS"});
    answer->send(std::move(response));
  }
}

std::vector<std::string> Router::routes() const {
  std::vector<std::string> out;
  for (const Route& route : routes_) out.push_back(route.method + " " + route.pattern);
  return out;
}

}  // namespace calla
