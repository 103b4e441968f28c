// Any bytes on a connection: every answer is HTTP, there are no more answers than the bytes hold requests, and nothing
// reaches a handler that does not name the loopback, or comes from a page of elsewhere.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/http.h"
#include "server/router.h"
#include "text/utf8.h"

using namespace calla;

namespace {

size_t count(std::string_view text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

// Said more plainly than in security.cc, and for these inputs enough.
bool names_loopback(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  const std::string name = text.starts_with('[') ? text.substr(0, text.find(']') + 1) : text.substr(0, text.find(':'));
  return name == "localhost" || name == "[::1]" || name.starts_with("127.");
}

class Target {
 public:
  Target() : router_(*Access::make({.host = "localhost"}), log_, metrics_, refuse) {
    for (const char* pattern : {"/a", "/b/{x}", "/b/{x}/c/{y}"}) {
      for (const char* method : {"GET", "POST"}) router_.add(method, pattern, handle);
    }
    HttpOptions options;
    options.admit = [this](const HttpRequest& head) { return router_.admit(head); };
    options.refuse = refuse;
    auto server = HttpServer::start(std::move(options), [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      router_.handle(std::move(request), std::move(reply));
    });
    CHECK(server, "the server starts");
    server_ = std::move(*server);
  }

  // All that comes back for all of the bytes.
  std::string exchange(std::string_view bytes) const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "the server listens");
    if (!bytes.empty()) (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::shutdown(fd, SHUT_WR);
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) all.append(buffer, static_cast<size_t>(n));
    ::close(fd);
    return all;
  }

 private:
  static HttpResponse refuse(int status, std::string message, std::string_view) {
    return {status, "text/plain", {}, std::move(message)};
  }
  static void handle(const Call& call) {
    CHECK(names_loopback(std::string(call.request.header("Host"))), "a foreign Host");
    const std::string origin(call.request.header("Origin"));
    CHECK(origin.empty() || names_loopback(origin.substr(origin.find("//") + 2)), "a foreign Origin");
    for (const std::string& p : call.params) CHECK(!p.empty() && valid_utf8(p), "a parameter is text");
    call.reply->send({200, "text/plain", {}, "ok"});
  }
  Log log_{LogLevel::kError, false, stderr};
  RequestMetrics metrics_;
  Router router_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Target target;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string answers = target.exchange(bytes);
  CHECK(answers.empty() || answers.starts_with("HTTP/1.1 "), "an answer is HTTP");
  // What is refused as no request is one answer too.
  CHECK(count(answers, "HTTP/1.1 ") <= 2 * count(bytes, "HTTP/1.") + 1, "more answers than requests");
  return 0;
}
