// The only file that sees Boost: Asio for sockets and timers, Beast for parsing requests.

#include "server/http.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <ctime>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace calla {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr milliseconds kTick{250};
constexpr milliseconds kLinger{1000};            // for a client to read why it was refused while it still sends
constexpr size_t kAhead = size_t{64} << 10;      // bytes that a client may send before it has its answer
constexpr size_t kLarge = size_t{1} << 20;       // a body after which memory goes back to the system
constexpr size_t kDiscarded = size_t{16} << 20;  // bytes of a refused request that are read for politeness

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 40> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

// How the end of a body is told.
enum class Framing : uint8_t { kLength, kChunks, kClose };

std::string head_text(const HttpResponse& response, Framing framing, bool keep, milliseconds idle) {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", response.status, http_reason(response.status), http_date());
  const auto add = [&](std::string_view name, std::string_view value) {
    text.append(name).append(": ");
    for (const char c : value) text += static_cast<uint8_t>(c) < 0x20 || c == 0x7f ? ' ' : c;
    text += "\r\n";
  };
  if (!response.content_type.empty()) add("Content-Type", response.content_type);
  for (const HttpHeader& h : response.headers) add(h.name, h.value);
  const bool bodyless = response.status == 204 || response.status == 304;
  if (framing == Framing::kChunks) add("Transfer-Encoding", "chunked");
  if (framing == Framing::kLength && !bodyless) add("Content-Length", fmt::format("{}", response.body.size()));
  if (keep) {
    add("Keep-Alive", fmt::format("timeout={}", std::chrono::duration_cast<std::chrono::seconds>(idle).count()));
  }
  add("Connection", keep ? "keep-alive" : "close");
  return text += "\r\n";
}

struct Core;
class Connection;

// One request's answer, between the threads that write it and the connection that sends it.
class Exchange {
 public:
  Exchange(Core& core, Connection& connection, bool head_only, bool chunks, bool keep, std::string path)
      : core_(core),
        connection_(&connection),
        path_(std::move(path)),
        head_only_(head_only),
        chunks_(chunks),
        keep_(keep) {}

  // Of HttpReply.
  void send(const HttpResponse& response);
  void begin(const HttpResponse& head, HttpFiller filler);
  bool write(std::string_view bytes);
  void finish();
  void hold(HttpResponse head, HttpFiller filler, milliseconds wait);
  void on_close(std::function<void()> closed);
  // The handle was dropped.
  void abandon();

  // For the connection. take() moves what is to be sent to the empty `out`; true: that is the rest of the answer.
  bool take(std::string& out);
  void sent();
  bool begun() const;
  bool done() const;
  bool keep() const;  // after the answer is complete
  void tick(Clock::time_point now);
  void detach();  // nothing is sent any more

 private:
  using Lock = std::unique_lock<std::mutex>;
  bool over() const { return done_ || lost_ || connection_ == nullptr; }
  void answer(const HttpResponse& response);
  void lose();
  void start(const HttpResponse& head, HttpFiller filler);
  void append(std::string_view bytes);
  void end();
  void wake();

  Core& core_;
  mutable std::mutex mutex_;
  Connection* connection_;  // null: detached
  const std::string path_;
  std::string out_;
  size_t flying_ = 0;  // bytes that the connection has taken and not sent
  const bool head_only_, chunks_;
  bool keep_;
  bool begun_ = false, done_ = false, lost_ = false;
  bool streams_ = false;  // begin() rather than hold()
  HttpFiller filler_;
  Clock::time_point last_{};  // when something was written last
  Clock::time_point hold_until_ = Clock::time_point::max();
  HttpResponse held_;
  std::function<void()> closed_;
};

class Reply final : public HttpReply {
 public:
  explicit Reply(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;
  ~Reply() override { exchange_->abandon(); }
  void send(HttpResponse response) override { exchange_->send(response); }
  void begin(HttpResponse head, HttpFiller filler) override { exchange_->begin(head, std::move(filler)); }
  bool write(std::string_view bytes) override { return exchange_->write(bytes); }
  void finish() override { exchange_->finish(); }
  void hold(HttpResponse head, HttpFiller filler, milliseconds wait) override {
    exchange_->hold(std::move(head), std::move(filler), wait);
  }
  void on_close(std::function<void()> closed) override { exchange_->on_close(std::move(closed)); }

 private:
  std::shared_ptr<Exchange> exchange_;
};

// What connections share. All but the atomics and the pool belong to the input thread.
struct Core {
  Core(HttpOptions o, HttpHandler h) : options(std::move(o)), handler(std::move(h)), pool(options.workers) {}

  HttpOptions options;
  HttpHandler handler;
  asio::io_context io{1};
  asio::steady_timer ticker{io};
  std::vector<tcp::acceptor> acceptors;
  std::set<Connection*> connections;
  size_t bodies_bytes = 0;
  std::atomic<bool> draining = false;
  std::atomic<int> open = 0, answering = 0;
  std::atomic<uint64_t> requests = 0, cut = 0;
  asio::thread_pool pool;

  asio::awaitable<void> accept(tcp::acceptor& acceptor);
  asio::awaitable<void> tick();
  void drain();
  void close();
};

// One client. Lives as long as its coroutine.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Core& core, tcp::socket socket) : core_(core), socket_(std::move(socket)), wake_(core.io) {
    core_.connections.insert(this);
    ++core_.open;
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    core_.connections.erase(this);
    --core_.open;
  }

  static void start(std::shared_ptr<Connection> connection, bool overloaded) {
    Connection& c = *connection;
    asio::co_spawn(
        c.core_.io, [connection, overloaded] { return connection->run(overloaded); },
        [connection](const std::exception_ptr&) { connection->lose(); });
  }

  Core& core() { return core_; }
  void tick(Clock::time_point now);
  void signal() {
    signalled_ = true;
    wake_.cancel();
  }
  // The client is gone, or has to go.
  void lose();
  void drain() {
    if (idle_) lose();
  }

 private:
  asio::awaitable<void> run(bool overloaded);
  asio::awaitable<std::optional<HttpRequest>> read_request();
  asio::awaitable<bool> read_body(http::request_parser<http::string_body>& parser, HttpRequest& request);
  asio::awaitable<bool> answer(std::shared_ptr<Exchange> exchange);
  asio::awaitable<bool> send(std::string bytes);
  // Says why and ends the connection.
  asio::awaitable<void> refuse(HttpResponse response);
  asio::awaitable<void> refuse(int status, std::string message, std::string path = "");
  void watch();
  void expire_after(milliseconds time) { deadline_ = Clock::now() + time; }

  Core& core_;
  tcp::socket socket_;
  beast::flat_buffer buffer_;
  asio::steady_timer wake_;
  asio::cancellation_signal stop_watching_;
  std::shared_ptr<Exchange> exchange_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point ended_ = Clock::time_point::max();  // when the client closed its side
  bool signalled_ = false, watching_ = false;
  bool lost_ = false, timed_out_ = false;
  bool idle_ = false;  // no byte of a next request has come
  bool keep_ = false, chunks_ = false;
};

// Exchange

// Requires the lock, as all private functions do.
void Exchange::wake() {
  if (connection_ == nullptr) return;
  asio::post(core_.io, [connection = connection_->weak_from_this()] {
    if (const auto c = connection.lock()) c->signal();
  });
}

void Exchange::lose() {
  lost_ = true;
  asio::post(core_.io, [connection = connection_->weak_from_this()] {
    if (const auto c = connection.lock()) c->lose();
  });
}

void Exchange::append(std::string_view bytes) {
  if (bytes.empty() || head_only_) return;
  if (chunks_) {
    out_.append(fmt::format("{:x}\r\n", bytes.size())).append(bytes).append("\r\n");
  } else {
    out_.append(bytes);
  }
  last_ = Clock::now();
}

void Exchange::start(const HttpResponse& head, HttpFiller filler) {
  begun_ = true;
  if (core_.draining || !chunks_) keep_ = false;
  out_ += head_text(head, chunks_ ? Framing::kChunks : Framing::kClose, keep_, core_.options.idle);
  append(head.body);
  filler_ = std::move(filler);
  append(filler_.bytes);
}

void Exchange::end() {
  if (chunks_ && !head_only_) out_ += "0\r\n\r\n";
  done_ = true;
  closed_ = nullptr;
}

void Exchange::answer(const HttpResponse& response) {
  if (begun_) {
    append(response.body);
    end();
  } else {
    if (core_.draining) keep_ = false;
    out_ += head_text(response, Framing::kLength, keep_, core_.options.idle);
    if (!head_only_) out_ += response.body;
    begun_ = done_ = true;
    closed_ = nullptr;
  }
  wake();
}

void Exchange::send(const HttpResponse& response) {
  const Lock lock(mutex_);
  if (over()) return;
  // After begin() it can only be an error, for which there is no way to be told but the missing end.
  streams_ ? lose() : answer(response);
}

void Exchange::begin(const HttpResponse& head, HttpFiller filler) {
  const Lock lock(mutex_);
  if (over()) return;
  CHECK(!begun_, "begin() twice or after hold()");
  streams_ = true;
  start(head, std::move(filler));
  wake();
}

bool Exchange::write(std::string_view bytes) {
  const Lock lock(mutex_);
  if (over()) return false;
  CHECK(streams_, "write() before begin()");
  append(bytes);
  if (out_.size() + flying_ > core_.options.unread) {
    ++core_.cut;
    lose();
    return false;
  }
  wake();
  return true;
}

void Exchange::finish() {
  const Lock lock(mutex_);
  if (over()) return;
  CHECK(streams_, "finish() before begin()");
  end();
  wake();
}

void Exchange::hold(HttpResponse head, HttpFiller filler, milliseconds wait) {
  const Lock lock(mutex_);
  if (over()) return;
  held_ = std::move(head);
  filler_ = std::move(filler);
  hold_until_ = Clock::now() + wait;
}

void Exchange::on_close(std::function<void()> closed) {
  {
    const Lock lock(mutex_);
    if (done_) return;
    if (connection_ != nullptr) {
      closed_ = std::move(closed);
      return;
    }
  }
  closed();
}

void Exchange::abandon() {
  const Lock lock(mutex_);
  if (over()) return;
  if (begun_) {
    lose();  // the missing end tells the client
  } else {
    answer(core_.options.refuse(500, "the request was not answered", path_));
  }
}

bool Exchange::take(std::string& out) {
  const Lock lock(mutex_);
  out.swap(out_);
  flying_ = out.size();
  return done_;
}

void Exchange::sent() {
  const Lock lock(mutex_);
  flying_ = 0;
}

bool Exchange::begun() const {
  const Lock lock(mutex_);
  return begun_;
}
bool Exchange::done() const {
  const Lock lock(mutex_);
  return done_;
}

bool Exchange::keep() const {
  const Lock lock(mutex_);
  return keep_;
}

void Exchange::tick(Clock::time_point now) {
  const Lock lock(mutex_);
  if (over()) return;
  if (!begun_ && now >= hold_until_) {
    start(held_, std::move(filler_));
    wake();
  } else if (begun_ && !filler_.bytes.empty() && now - last_ >= filler_.every) {
    append(filler_.bytes);
    wake();
  }
}

void Exchange::detach() {
  std::function<void()> closed;
  {
    const Lock lock(mutex_);
    connection_ = nullptr;
    closed.swap(closed_);
  }
  if (closed) closed();
}

// Connection

void Connection::lose() {
  lost_ = true;
  error_code ignored;
  socket_.close(ignored);
  if (exchange_) exchange_->detach();
  signal();
}

void Connection::tick(Clock::time_point now) {
  if (now >= deadline_) {
    timed_out_ = true;
    error_code ignored;
    socket_.cancel(ignored);
  }
  if (!exchange_) return;
  exchange_->tick(now);
  // Some clients close their side when they have asked and still wait; a vanished one looks the same.
  if (now >= ended_) lose();
}

asio::awaitable<bool> Connection::send(std::string bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    expire_after(core_.options.stall);
    const auto [error, count] =
        co_await socket_.async_write_some(asio::buffer(bytes.data() + done, bytes.size() - done), kAwait);
    if (error) {
      if (timed_out_) ++core_.cut;
      co_return false;
    }
    done += count;
  }
  deadline_ = Clock::time_point::max();
  co_return true;
}

asio::awaitable<void> Connection::refuse(HttpResponse response) {
  timed_out_ = false;
  if (!co_await send(head_text(response, Framing::kLength, false, {}) + response.body)) co_return;
  // A socket that is closed with unread bytes resets the connection, and the client never sees the answer.
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  expire_after(kLinger);
  std::array<char, 4096> discarded;
  for (size_t total = 0; total < kDiscarded;) {
    const auto [error, count] = co_await socket_.async_read_some(asio::buffer(discarded), kAwait);
    if (error) break;
    total += count;
  }
}

asio::awaitable<void> Connection::refuse(int status, std::string message, std::string path) {
  co_await refuse(core_.options.refuse(status, std::move(message), path));
}

// What is wrong with the way a request is framed or addressed: status and message.
std::optional<std::pair<int, std::string>> framing_fault(const http::request_header<>& head) {
  const auto fault = [](int status, std::string message) { return std::pair(status, std::move(message)); };
  if (head.version() != 11 && head.version() != 10) return fault(505, "the version must be HTTP/1.1 or HTTP/1.0");
  const std::string_view target(head.target().data(), head.target().size());
  const bool star = target == "*" && head.method() == http::verb::options;
  if (!target.starts_with('/') && !star) return fault(400, "the target must be a path that begins with /");
  for (const char c : target) {
    if (static_cast<uint8_t>(c) <= 0x20 || static_cast<uint8_t>(c) >= 0x7f) {
      return fault(400, "the target holds a character that must be percent-encoded");
    }
  }
  constexpr const char* kOnce[] = {"Host",          "Content-Length", "Transfer-Encoding", "Origin",
                                   "Authorization", "X-Api-Key",      "Content-Type",      "Expect"};
  for (const char* name : kOnce) {
    if (head.count(name) > 1) return fault(400, fmt::format("there is more than one {} header", name));
  }
  if (head.version() == 11 && head.count("Host") == 0) return fault(400, "the Host header is missing");
  const auto length = head.find(http::field::content_length);
  const auto coding = head.find(http::field::transfer_encoding);
  if (coding != head.end()) {
    if (length != head.end()) return fault(400, "Content-Length and Transfer-Encoding exclude each other");
    if (head.version() == 10) return fault(400, "HTTP/1.0 has no Transfer-Encoding");
    if (!equal_ignoring_case({coding->value().data(), coding->value().size()}, "chunked")) {
      return fault(501, "the only transfer coding that is understood is chunked");
    }
  }
  if (length != head.end()) {
    const std::string_view digits(length->value().data(), length->value().size());
    if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) {
      return fault(400, "Content-Length must be one number");
    }
  }
  const auto encoding = head.find(http::field::content_encoding);
  if (encoding != head.end() &&
      !equal_ignoring_case({encoding->value().data(), encoding->value().size()}, "identity")) {
    return fault(415, "compressed request bodies are not understood");
  }
  if (const auto expect = head.find(http::field::expect);
      expect != head.end() && !equal_ignoring_case({expect->value().data(), expect->value().size()}, "100-continue")) {
    return fault(417, "the only expectation that is understood is 100-continue");
  }
  return std::nullopt;
}

bool is_http_error(const error_code& error) {
  return error.category() == http::make_error_code(http::error::bad_method).category() &&
         error != http::error::end_of_stream;
}

asio::awaitable<std::optional<HttpRequest>> Connection::read_request() {
  timed_out_ = false;
  expire_after(core_.options.idle);
  if (buffer_.size() == 0) {
    buffer_.shrink_to_fit();
    idle_ = true;
    if (core_.draining) co_return std::nullopt;
    const auto [error] = co_await socket_.async_wait(tcp::socket::wait_read, kAwait);
    idle_ = false;
    if (error || lost_) co_return std::nullopt;
  }
  expire_after(core_.options.head);
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(core_.options.header_bytes));
  parser.body_limit(boost::none);
  {
    const auto [error, count] = co_await http::async_read_header(socket_, buffer_, parser, kAwait);
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      co_await refuse(431, fmt::format("the headers are larger than {} bytes", core_.options.header_bytes));
    } else if (is_http_error(error)) {
      co_await refuse(400, fmt::format("this is not an HTTP request: {}", error.message()));
    } else if (error && timed_out_ && !lost_) {
      co_await refuse(408, "the headers took too long");
    }
    if (error) co_return std::nullopt;
  }
  const http::request_header<>& head = parser.get();
  HttpRequest request;
  request.id = ++core_.requests;
  request.arrived = Clock::now();
  request.method = std::string_view(head.method_string().data(), head.method_string().size());
  const std::string_view target(head.target().data(), head.target().size());
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string_view::npos) request.query = target.substr(question + 1);
  size_t header_bytes = target.size();
  for (const auto& field : head) {
    header_bytes += field.name_string().size() + field.value().size() + std::string_view(": \r\n").size();
    request.headers.push_back({std::string(field.name_string().data(), field.name_string().size()),
                               std::string(field.value().data(), field.value().size())});
  }
  error_code unnamed;
  const tcp::endpoint peer = socket_.remote_endpoint(unnamed);
  const bool v6 = peer.address().is_v6();
  request.peer = fmt::format("{}{}{}:{}", v6 ? "[" : "", peer.address().to_string(), v6 ? "]" : "", peer.port());

  // Beast's own limit bounds what is read, and is only looked at when headers come in several pieces.
  if (header_bytes > core_.options.header_bytes) {
    co_await refuse(431, fmt::format("the headers are larger than {} bytes", core_.options.header_bytes));
    co_return std::nullopt;
  }
  if (auto fault = framing_fault(head)) {
    co_await refuse(fault->first, std::move(fault->second), request.path);
    co_return std::nullopt;
  }
  if (core_.options.admit) {
    if (auto refusal = core_.options.admit(request)) {
      co_await refuse(std::move(*refusal));
      co_return std::nullopt;
    }
  }
  keep_ = parser.keep_alive();
  chunks_ = head.version() == 11;
  if (!parser.is_done() && !co_await read_body(parser, request)) co_return std::nullopt;
  deadline_ = Clock::time_point::max();
  request.body = std::move(parser.get().body());
  co_return request;
}

asio::awaitable<bool> Connection::read_body(http::request_parser<http::string_body>& parser, HttpRequest& request) {
  const HttpOptions& o = core_.options;
  const uint64_t length = parser.content_length().value_or(o.body_bytes);
  if (length > o.body_bytes) {
    co_await refuse(413, fmt::format("the body is larger than {} bytes", o.body_bytes), request.path);
    co_return false;
  }
  if (core_.bodies_bytes + length > o.bodies_bytes) {
    HttpResponse busy = o.refuse(503, "too many large requests are being read", request.path);
    busy.headers.push_back({"Retry-After", "1"});
    co_await refuse(std::move(busy));
    co_return false;
  }
  struct Share {
    size_t& total;
    size_t bytes;
    Share(size_t& t, size_t b) : total(t), bytes(b) { total += bytes; }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { total -= bytes; }
  } const share(core_.bodies_bytes, length);

  if (parser.get().version() == 11 && parser.get().count(http::field::expect) != 0) {
    if (!co_await send("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
  }
  expire_after(o.body);
  parser.body_limit(o.body_bytes);
  const auto [error, count] = co_await http::async_read(socket_, buffer_, parser, kAwait);
  if (!error) co_return true;
  if (error == http::error::body_limit) {
    co_await refuse(413, fmt::format("the body is larger than {} bytes", o.body_bytes), request.path);
  } else if (is_http_error(error)) {
    co_await refuse(400, fmt::format("the body is damaged: {}", error.message()), request.path);
  } else if (timed_out_ && !lost_) {
    co_await refuse(408, "the body took too long", request.path);
  }
  co_return false;
}

// Reads ahead while an answer is under way: the only way to see that the client has gone.
void Connection::watch() {
  watching_ = true;
  socket_.async_read_some(
      buffer_.prepare(512),
      asio::bind_cancellation_slot(stop_watching_.slot(), [self = shared_from_this()](error_code error, size_t count) {
        self->watching_ = false;
        self->buffer_.commit(count);
        if (self->exchange_ == nullptr || error == asio::error::operation_aborted) {
          // The answer is complete, or the connection lost.
        } else if (error == asio::error::eof && self->exchange_->done()) {
          self->ended_ =
              Clock::time_point::max() - Clock::duration(1);  // never, but not kept: all that is left is to send
        } else if (error == asio::error::eof && !self->exchange_->begun()) {
          self->ended_ = Clock::now() + kTick;
        } else if (error || self->buffer_.size() > kAhead) {
          self->lose();
        } else {
          self->watch();
        }
        self->signal();
      }));
}

asio::awaitable<bool> Connection::answer(std::shared_ptr<Exchange> exchange) {
  exchange_ = exchange;
  ++core_.answering;
  watch();
  bool complete = false;
  while (!lost_) {
    std::string out;
    complete = exchange->take(out);
    if (!out.empty()) {
      if (!co_await send(std::move(out))) lose();
      exchange->sent();
    }
    if (complete || lost_) break;
    if (!signalled_) co_await wake_.async_wait(kAwait);
    signalled_ = false;
  }
  exchange->detach();
  exchange_ = nullptr;
  --core_.answering;
  stop_watching_.emit(asio::cancellation_type::terminal);
  while (watching_) {
    if (!signalled_) co_await wake_.async_wait(kAwait);
    signalled_ = false;
  }
  co_return complete && !lost_ && exchange->keep() && ended_ == Clock::time_point::max();
}

asio::awaitable<void> Connection::run(bool overloaded) {
  wake_.expires_at(Clock::time_point::max());
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  if (overloaded) {
    HttpResponse busy = core_.options.refuse(503, "too many connections", "");
    busy.headers.push_back({"Retry-After", "1"});
    co_await refuse(std::move(busy));
  }
  while (!overloaded) {
    std::optional<HttpRequest> request = co_await read_request();
    if (!request) break;
    auto exchange = std::make_shared<Exchange>(core_, *this, request->method == "HEAD", chunks_, keep_, request->path);
    asio::post(core_.pool,
               [&core = core_, request = std::move(*request), reply = std::make_shared<Reply>(exchange)]() mutable {
                 const bool large = request.body.size() > kLarge;
                 try {
                   core.handler(std::move(request), std::move(reply));
                 } catch (const std::exception&) {
                   // Memory ran out; the reply, dropped, says 500.
                 }
                 // What was parsed took many times the bytes, and each thread's heap would keep them.
                 if (large) ::malloc_trim(0);
               });
    request.reset();
    if (!co_await answer(std::move(exchange))) break;
  }
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

// Core

asio::awaitable<void> Core::accept(tcp::acceptor& acceptor) {
  while (acceptor.is_open()) {
    auto [error, socket] = co_await acceptor.async_accept(kAwait);
    if (!acceptor.is_open()) break;
    if (error) {  // no file descriptors left: others will close some
      asio::steady_timer pause(io, milliseconds(100));
      co_await pause.async_wait(kAwait);
      continue;
    }
    const int count = open;
    if (count >= 2 * options.connections) continue;  // closes it
    Connection::start(std::make_shared<Connection>(*this, std::move(socket)), count >= options.connections);
  }
}

asio::awaitable<void> Core::tick() {
  for (;;) {
    ticker.expires_after(kTick);
    const auto [error] = co_await ticker.async_wait(kAwait);
    if (error) break;
    const Clock::time_point now = Clock::now();
    for (Connection* connection : connections) connection->tick(now);
  }
}

void Core::drain() {
  draining = true;
  error_code ignored;
  for (tcp::acceptor& acceptor : acceptors) acceptor.close(ignored);
  for (Connection* connection : connections) connection->drain();
}

void Core::close() {
  drain();
  ticker.cancel();
  for (Connection* connection : connections) connection->lose();
}

class Server final : public HttpServer {
 public:
  Server(HttpOptions options, HttpHandler handler) : core_(std::move(options), std::move(handler)) {}
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() override {
    if (thread_.joinable()) {
      asio::post(core_.io, [this] { core_.close(); });
      thread_.join();
    }
    core_.pool.stop();
    core_.pool.join();
  }

  Result<void> listen() {
    std::vector<std::string> addresses{core_.options.host};
    if (core_.options.host == "localhost") addresses = {"127.0.0.1", "::1"};
    std::string why;
    for (const std::string& text : addresses) {
      error_code error;
      const auto address = asio::ip::make_address(text, error);
      if (error) {
        return invalid(
            fmt::format("cannot listen on \"{}\": it is neither \"localhost\" nor an IPv4 or IPv6 address", text));
      }
      // Both loopback addresses get the same port.
      const tcp::endpoint endpoint(address, static_cast<uint16_t>(port_ != 0 ? port_ : core_.options.port));
      tcp::acceptor acceptor(core_.io);
      acceptor.open(endpoint.protocol(), error);
      if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
      if (!error && address.is_v6()) acceptor.set_option(asio::ip::v6_only(!address.is_unspecified()), error);
      if (!error) acceptor.bind(endpoint, error);
      if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
      // Machines without IPv6 have no ::1.
      if (error && !core_.acceptors.empty() && error != asio::error::address_in_use) continue;
      if (error) {
        return fail(Error::Code::kIo,
                    fmt::format("cannot listen on {} port {}: {}", text, endpoint.port(), error.message()));
      }
      port_ = acceptor.local_endpoint(error).port();
      core_.acceptors.push_back(std::move(acceptor));
    }
    return {};
  }

  void run() {
    const auto spawn = [this](asio::awaitable<void> task) {
      asio::co_spawn(core_.io, std::move(task), asio::detached);
    };
    for (tcp::acceptor& acceptor : core_.acceptors) spawn(core_.accept(acceptor));
    spawn(core_.tick());
    thread_ = std::thread([this] { core_.io.run(); });
  }

  int port() const override { return port_; }
  HttpStats stats() const override { return {core_.open, core_.answering, core_.requests, core_.cut}; }
  void drain() override {
    asio::post(core_.io, [this] { core_.drain(); });
  }

 private:
  Core core_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(),
                                  [&](const HttpHeader& h) { return equal_ignoring_case(h.name, name); });
  return found == headers.end() ? std::string_view() : std::string_view(found->value);
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, HttpHandler handler) {
  CHECK(options.refuse, "HttpOptions::refuse is missing");
  try {
    auto server = std::make_unique<Server>(std::move(options), std::move(handler));
    CALLA_TRY(server->listen());
    server->run();
    return server;
  } catch (const std::exception& e) {  // no threads, no epoll
    return fail(Error::Code::kIo, fmt::format("cannot start the server: {}", e.what()));
  }
}

std::string_view http_reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    case 529:
      return "Overloaded";
    default:
      return "";
  }
}

}  // namespace calla
