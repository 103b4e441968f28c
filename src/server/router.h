#pragma once

// From a request to the function that answers it: paths and methods, who may ask, CORS, one line in the log.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/security.h"

namespace calla {

class Router;

// The reply to one call, which also adds the headers that every answer has and writes the call's line in the log when
// its answer is complete or its client gone.
class CallReply final : public HttpReply {
 public:
  CallReply(const Router& router, const HttpRequest& request, std::string route, bool quiet,
            std::shared_ptr<HttpReply> reply);
  CallReply(const CallReply&) = delete;
  CallReply& operator=(const CallReply&) = delete;
  ~CallReply() override;

  void send(HttpResponse response) override;
  void begin(HttpResponse head, HttpFiller filler) override;
  bool write(std::string_view bytes) override { return reply_->write(bytes); }
  void finish() override;
  void hold(HttpResponse head, HttpFiller filler, std::chrono::milliseconds wait) override;
  void on_close(std::function<void()> closed) override;

  // The answer is all there: a client that goes before its last bytes are sent has what it wanted.
  void complete();
  // Something worth telling about the call in its line in the log.
  void note(std::string_view name, Log::Value value);

 private:
  friend class Router;
  void client_gone();
  HttpResponse dressed(HttpResponse response) const;
  void ended(int status);

  const Router& router_;
  const std::shared_ptr<HttpReply> reply_;
  const uint64_t id_;
  const std::chrono::steady_clock::time_point arrived_;
  const std::string method_, path_, route_;
  const bool quiet_;
  std::vector<HttpHeader> headers_;
  std::mutex mutex_;
  int status_ = 0;  // of begin()
  bool logged_ = false, gone_ = false, complete_ = false;
  std::function<void()> closed_;
  std::vector<Log::Field> notes_;
};

struct Call {
  HttpRequest request;
  std::vector<std::string> params;  // what stood for each {…} of the pattern, decoded
  std::shared_ptr<CallReply> reply;
};

// Immutable after the last add(); then thread-safe. Must outlive all calls.
class Router {
 public:
  using Handler = std::function<void(Call call)>;
  // The body of an error in the shape of the API that the path belongs to.
  using Refuse = std::function<HttpResponse(int status, std::string message, std::string_view path)>;

  Router(Access access, Log& log, RequestMetrics& metrics, Refuse refuse);

  struct Flags {
    bool open = false;   // no API key is needed
    bool quiet = false;  // in the log only at the level debug, unless it fails
  };
  // `pattern`: a path whose parts may be {name}, which stands for any one part. HEAD follows from GET.
  void add(std::string method, std::string pattern, Handler handler, Flags flags);
  void add(std::string method, std::string pattern, Handler handler) {
    add(std::move(method), std::move(pattern), std::move(handler), Flags{});
  }

  // For HttpOptions: who may not ask is told before sending a body.
  std::optional<HttpResponse> admit(const HttpRequest& head) const;
  // For HttpOptions: what is said, and logged, of a request that never became a call.
  HttpResponse refuse(int status, std::string message, std::string_view path) const;
  // For HttpServer: an unknown path is 404, a wrong method 405 with Allow.
  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) const;

  // "GET /health", "POST /v1/messages", …, in the order of add().
  std::vector<std::string> routes() const;

 private:
  friend class CallReply;
  struct Route {
    std::string method, pattern;
    std::vector<std::string> parts;
    Handler handler;
    Flags flags;
  };
  static std::optional<std::vector<std::string>> match(const Route& route, std::string_view path);
  std::string hint(std::string_view path) const;

  const Access access_;
  Log& log_;
  RequestMetrics& metrics_;
  const Refuse refuse_;
  std::vector<Route> routes_;
};

// %41 becomes A, and so on. Nothing where that leaves UTF-8, gives a control character or is cut off.
std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace calla
