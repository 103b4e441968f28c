#pragma once

// HTTP/1.1 over TCP: what the server needs of it and nothing more. One thread does all input and output; requests are
// handled on a few workers; answers may come from any thread, whole or piece by piece.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace calla {

struct HttpHeader {
  std::string name, value;
};

struct HttpRequest {
  uint64_t id = 0;                                // counts the requests of this process, from 1
  std::chrono::steady_clock::time_point arrived;  // when its headers were complete
  std::string method;                             // as sent: "GET"
  std::string path;                               // as sent, not decoded, up to the '?'; "*" is possible with OPTIONS
  std::string query;                              // what follows the '?'
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;  // "127.0.0.1:50314", "[::1]:50314"

  // The value of a header, whatever its case; "" where it is absent. Host, Origin, Authorization, X-Api-Key and
  // Content-Type occur at most once: requests with two of them are refused.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type;  // "": no Content-Type
  // Besides Content-Type, Content-Length, Transfer-Encoding, Connection, Keep-Alive and Date. Control characters in
  // values go out as spaces.
  std::vector<HttpHeader> headers;
  std::string body;
};

// What goes out where an answer is slow, so that nobody on the way takes the connection for dead: an SSE comment, or a
// space before JSON.
struct HttpFiller {
  std::string bytes;
  std::chrono::milliseconds every{5000};  // after so much silence; looked at four times a second
};

// The answer to one request. All methods may be called from any thread and never block; a reply that is dropped without
// an answer becomes a 500. The body of an answer to HEAD is left out here.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // The whole answer. Nothing may follow. After begin(), it cuts the answer off.
  virtual void send(HttpResponse response) = 0;

  // An answer in pieces: the head, with its body as the first piece, goes out at once, and so does the filler. Then
  // write() any number of times, finish(). Between two write() calls the filler may go out: each writes whole events.
  virtual void begin(HttpResponse head, HttpFiller filler) = 0;
  // False: nobody reads any more, or the reader is so slow that HttpOptions::unread would be exceeded and the
  // connection was cut.
  virtual bool write(std::string_view bytes) = 0;
  virtual void finish() = 0;

  // For a whole answer that may take minutes. If send() has not been called after `wait`, `head` goes out at once and
  // the filler from then on; of the later send(), only the body.
  virtual void hold(HttpResponse head, HttpFiller filler, std::chrono::milliseconds wait) = 0;

  // `closed` is called once, on any thread, if the client vanishes, its connection is cut or the server stops before
  // the answer is complete; if that has happened, at once. It must not block.
  virtual void on_close(std::function<void()> closed) = 0;
};

// Called on one of HttpOptions::workers threads; may take a while, but holds that worker.
using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<HttpReply> reply)>;

struct HttpOptions {
  // Addresses to listen on, IPv4 or IPv6 literals. "localhost": both loopback addresses, as far as they exist.
  std::string host = "localhost";
  int port = 0;     // 0: any free one
  int workers = 4;  // threads that run the handler

  size_t header_bytes = 32 << 10;           // of the request line and all headers; more is 431
  size_t body_bytes = size_t{32} << 20;     // of one request; more is 413
  size_t bodies_bytes = size_t{256} << 20;  // of all requests that are being read; more is 503
  size_t unread = size_t{1} << 20;          // bytes of a streamed answer that the client may leave unread
  int connections = 1024;                   // more are answered with 503
  std::chrono::milliseconds idle{75'000};   // a connection without a request
  std::chrono::milliseconds head{10'000};   // from the first byte of a request to the end of its headers
  std::chrono::milliseconds body{60'000};   // for the body
  std::chrono::milliseconds stall{30'000};  // while the client takes nothing of what is written

  // Looks at a request before its body is read (on the input thread: must be quick); an answer refuses it.
  std::function<std::optional<HttpResponse>(const HttpRequest& head)> admit;
  // The answer to what is refused here. `path` is "" where the request could not be read that far.
  std::function<HttpResponse(int status, std::string message, std::string_view path)> refuse;
};

struct HttpStats {
  int connections = 0;  // open now
  int answering = 0;    // requests that are not answered completely
  uint64_t requests = 0;
  uint64_t cut = 0;  // connections ended because the client was too slow to read
};

// Refused with 4xx or 5xx and closed, besides what the limits say: requests that two servers might frame differently
// (Content-Length with Transfer-Encoding, either of them twice, a transfer coding other than chunked, damaged chunks),
// a missing or second Host, absolute targets, other versions than 1.0 and 1.1, compressed bodies.
class HttpServer {
 public:
  // Listens and starts the threads. Errors name the address: taken, not allowed, not a literal.
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, HttpHandler handler);
  // Cuts what is still open.
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  virtual HttpStats stats() const = 0;

  // Accepts no more connections and requests; answers that are under way go on. Thread-safe, returns at once.
  virtual void drain() = 0;
};

// A reason phrase: "Not Found"; "" where there is none.
std::string_view http_reason(int status);

}  // namespace calla
