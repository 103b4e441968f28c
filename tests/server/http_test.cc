#include "server/http.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/server/client.h"

namespace calla {
namespace {

using std::chrono::milliseconds;

HttpResponse text(int status, std::string body) {
  return {status, "text/plain", {}, std::move(body)};
}

HttpOptions quick_options() {
  HttpOptions o;
  o.refuse = [](int status, std::string message, std::string_view path) {
    return text(status, std::string(path) + "|" + message);
  };
  return o;
}

// Answers with what it was asked; /wait is kept for the test, /drop is dropped.
class HttpTest : public testing::Test {
 protected:
  void start(HttpOptions options = quick_options()) {
    auto server = HttpServer::start(std::move(options), [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      if (request.path == "/drop") return;
      if (request.path == "/wait") {
        const std::scoped_lock lock(mutex_);
        waiting_ = std::move(reply);
        arrived_.notify_all();
        return;
      }
      reply->send(text(200, request.method + " " + request.path + " " + request.query + " " + request.body));
    });
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }
  // The reply to a request for /wait.
  std::shared_ptr<HttpReply> waiting() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(arrived_.wait_for(lock, std::chrono::seconds(10), [this] { return waiting_ != nullptr; }));
    return std::exchange(waiting_, nullptr);
  }
  int port() const { return server_->port(); }
  bool eventually(const std::function<bool()>& condition, double seconds = 10) {
    const auto start = Clock::now();
    while (!condition()) {
      if (seconds_since(start) > seconds) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::shared_ptr<HttpReply> waiting_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, AnswersRequestsOnOneConnection) {
  start();
  Client client(port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(request_text("POST /a/b?x=1", "hello")));
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "POST /a/b x=1 hello");
    EXPECT_EQ(answer.header("Connection"), "keep-alive");
    EXPECT_EQ(answer.header("Content-Type"), "text/plain");
  }
  EXPECT_EQ(server_->stats().connections, 1);
  EXPECT_EQ(server_->stats().requests, 3u);
}

TEST_F(HttpTest, AnswersPipelinedRequestsInOrder) {
  start();
  Client client(port());
  ASSERT_TRUE(client.send(request_text("GET /1") + request_text("POST /2", "two") + request_text("GET /3")));
  EXPECT_EQ(client.answer().body, "GET /1  ");
  EXPECT_EQ(client.answer().body, "POST /2  two");
  EXPECT_EQ(client.answer().body, "GET /3  ");
}

TEST_F(HttpTest, ReadsARequestThatComesByteByByte) {
  start();
  Client client(port());
  for (const char c :
       "POST /slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;e=1\r\nde\r\n0\r\n\r\n") {
    ASSERT_TRUE(c == '\0' || client.send(std::string(1, c)));
  }
  EXPECT_EQ(client.answer().body, "POST /slow  abcde");
}

TEST_F(HttpTest, HeadHasTheLengthAndNoBody) {
  start();
  Client client(port());
  ASSERT_TRUE(client.send(request_text("HEAD /x") + request_text("GET /y")));
  const auto head = client.answer(true);
  EXPECT_EQ(head.header("Content-Length"), std::to_string(std::string("HEAD /x  ").size()));
  EXPECT_EQ(client.answer().body, "GET /y  ");
}

TEST_F(HttpTest, SaysContinueBeforeALargeBody) {
  start();
  Client client(port());
  ASSERT_TRUE(client.send("POST /e HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"));
  EXPECT_EQ(client.answer().status, 100);
  ASSERT_TRUE(client.send("body"));
  EXPECT_EQ(client.answer().body, "POST /e  body");
}

TEST_F(HttpTest, Http10GetsTheBodyUntilTheEnd) {
  start();
  Client client(port());
  ASSERT_TRUE(client.send("GET /wait HTTP/1.0\r\n\r\n"));
  const auto reply = waiting();
  reply->begin(text(200, ""), {"", {}});
  EXPECT_TRUE(reply->write("one "));
  EXPECT_TRUE(reply->write("two"));
  reply->finish();
  const std::string all = client.rest();
  EXPECT_TRUE(client.closed());
  EXPECT_NE(all.find("Connection: close\r\n"), std::string::npos) << all;
  EXPECT_EQ(all.find("chunked"), std::string::npos) << all;
  EXPECT_EQ(all.substr(all.find("\r\n\r\n") + 4), "one two");
}

TEST_F(HttpTest, StreamsPiecesFromAnotherThread) {
  start();
  Client client(port());
  ASSERT_TRUE(client.send(request_text("GET /wait")));
  std::thread writer([reply = waiting()] {
    reply->begin({200, "text/event-stream", {{"X-A", "b\r\nEvil: 1"}}, ""}, {": ping\n\n", milliseconds(60'000)});
    for (int i = 0; i < 1000; ++i) EXPECT_TRUE(reply->write("data: " + std::to_string(i) + "\n\n"));
    reply->finish();
    EXPECT_FALSE(reply->write("late"));
  });
  const auto answer = client.answer();
  writer.join();
  std::string expected = ": ping\n\n";
  for (int i = 0; i < 1000; ++i) expected += "data: " + std::to_string(i) + "\n\n";
  EXPECT_EQ(answer.body, expected);
  EXPECT_EQ(answer.header("Evil"), "");
  ASSERT_TRUE(client.send(request_text("GET /next")));
  EXPECT_EQ(client.answer().body, "GET /next  ");
}

TEST_F(HttpTest, FillsSilence) {
  start();
  Client client(port());
  ASSERT_TRUE(client.send(request_text("GET /wait")));
  const auto reply = waiting();
  reply->begin(text(200, ""), {":", milliseconds(300)});
  EXPECT_NE(client.until("1\r\n:\r\n", 0.9), "") << "the first one comes with the head";
  EXPECT_NE(client.until("1\r\n:\r\n", 0.9), "");
  EXPECT_NE(client.until("1\r\n:\r\n", 0.9), "");
  reply->finish();
  EXPECT_NE(client.until("0\r\n\r\n", 0.9), "");
}

TEST_F(HttpTest, HoldsAConnectionForAWholeAnswer) {
  start();
  Client client(port());
  for (const bool slow : {false, true}) {
    ASSERT_TRUE(client.send(request_text("GET /wait")));
    const auto reply = waiting();
    reply->hold({200, "application/json", {}, ""}, {" ", milliseconds(250)}, milliseconds(slow ? 0 : 60'000));
    if (slow) std::this_thread::sleep_for(milliseconds(900));
    reply->send({201, "application/json", {}, "{}"});
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, slow ? 200 : 201);
    EXPECT_EQ(answer.header("Content-Length"), slow ? "" : "2");
    if (!slow) {
      EXPECT_EQ(answer.body, "{}");
    } else {
      EXPECT_GE(answer.body.size(), 4u);
      EXPECT_EQ(answer.body.substr(answer.body.find_first_not_of(' ')), "{}");
    }
  }
}

TEST_F(HttpTest, ADroppedReplyIsA500) {
  start();
  Client client(port());
  ASSERT_TRUE(client.send(request_text("GET /drop")));
  EXPECT_EQ(client.answer().status, 500);
  ASSERT_TRUE(client.send(request_text("GET /wait")));
  waiting()->begin(text(200, "x"), {"", {}});
  const std::string all = client.rest();
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(all.find("0\r\n\r\n"), std::string::npos) << "a cut answer must not look complete";
}

TEST_F(HttpTest, SeesThatAClientVanished) {
  start();
  for (const bool streaming : {false, true}) {
    for (const bool reset : {false, true}) {
      Client client(port());
      ASSERT_TRUE(client.send(request_text("GET /wait")));
      const auto reply = waiting();
      if (streaming) {
        reply->begin(text(200, ""), {":", milliseconds(60'000)});
        EXPECT_NE(client.until(":\r\n"), "");
      }
      std::atomic<int> closed = 0;
      reply->on_close([&] { ++closed; });
      const auto start = Clock::now();
      reset ? client.reset() : client.close();
      EXPECT_TRUE(eventually([&] { return closed == 1; }));
      EXPECT_LT(seconds_since(start), 1.0);
      EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
      EXPECT_FALSE(streaming && reply->write("x"));
      reply->on_close([&] { ++closed; });
      EXPECT_EQ(closed, 2) << "told at once";
    }
  }
}

TEST_F(HttpTest, ACompleteAnswerIsNotAVanishedClient) {
  start();
  std::atomic<int> closed = 0;
  Client client(port());
  ASSERT_TRUE(client.send(request_text("GET /wait")));
  const auto reply = waiting();
  reply->on_close([&] { ++closed; });
  reply->send(text(200, "done"));
  EXPECT_EQ(client.answer().body, "done");
  client.close();
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(closed, 0);
}

TEST_F(HttpTest, AnswersAClientThatHasClosedItsSide) {
  start();
  Client client(port());
  ASSERT_TRUE(client.send(request_text("GET /half")));
  client.end_sending();
  EXPECT_EQ(client.answer().body, "GET /half  ");
  client.rest();
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpTest, CutsASlowReader) {
  HttpOptions o = quick_options();
  o.unread = 64 << 10;
  start(std::move(o));
  Client client(port(), 4096);
  ASSERT_TRUE(client.send(request_text("GET /wait")));
  const auto reply = waiting();
  std::atomic<int> closed = 0;
  reply->on_close([&] { ++closed; });
  reply->begin(text(200, ""), {"", {}});
  const std::string piece(1000, 'x');
  bool open = true;
  for (int i = 0; open && i < 100'000; ++i) {
    open = reply->write(piece);
    if (i % 64 == 0) std::this_thread::sleep_for(milliseconds(1));  // time for what the socket's buffer takes
  }
  EXPECT_FALSE(open);
  EXPECT_TRUE(eventually([&] { return closed == 1; }));
  EXPECT_EQ(server_->stats().cut, 1u);
}

TEST_F(HttpTest, CutsAReaderThatTakesNothing) {
  HttpOptions o = quick_options();
  o.stall = milliseconds(500);
  start(std::move(o));
  Client client(port(), 4096);
  ASSERT_TRUE(client.send(request_text("GET /wait")));
  const auto reply = waiting();
  reply->send(text(200, std::string(64 << 20, 'x')));
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
  EXPECT_EQ(server_->stats().cut, 1u);
}

TEST_F(HttpTest, DrainsAndThenEnds) {
  start();
  Client idle(port()), busy(port());
  ASSERT_TRUE(busy.send(request_text("GET /wait")));
  const auto reply = waiting();
  reply->begin(text(200, ""), {"", {}});
  server_->drain();
  idle.rest();
  EXPECT_TRUE(idle.closed());
  EXPECT_EQ(server_->stats().answering, 1);
  EXPECT_TRUE(reply->write("rest"));
  reply->finish();
  EXPECT_EQ(busy.answer().body, "rest");
  busy.rest();
  EXPECT_TRUE(busy.closed());
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
}

TEST_F(HttpTest, EndsWithAnswersUnderWay) {
  start();
  Client client(port());
  ASSERT_TRUE(client.send(request_text("GET /wait")));
  const auto reply = waiting();
  std::atomic<int> closed = 0;
  reply->on_close([&] { ++closed; });
  reply->begin(text(200, ""), {"", {}});
  server_.reset();
  EXPECT_EQ(closed, 1);
  EXPECT_FALSE(reply->write("into nothing"));
}

TEST_F(HttpTest, RefusesBeforeTheBody) {
  HttpOptions o = quick_options();
  o.admit = [](const HttpRequest& head) -> std::optional<HttpResponse> {
    if (head.header("x-api-key") == "right") return std::nullopt;
    return text(401, "no");
  };
  start(std::move(o));
  Client client(port());
  ASSERT_TRUE(client.send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n"));
  const auto answer = client.answer();
  EXPECT_EQ(answer.status, 401);
  EXPECT_EQ(answer.header("Connection"), "close");
  // It goes on sending for a while and still reads its answer.
  Client sending(port());
  ASSERT_TRUE(sending.send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n"));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(sending.send(std::string(3'000'000, 'x')));
  EXPECT_EQ(sending.answer().status, 401);
  Client right(port());
  ASSERT_TRUE(right.send(request_text("POST /x", "b", "X-API-Key: right\r\n")));
  EXPECT_EQ(right.answer().body, "POST /x  b");
}

TEST_F(HttpTest, KeepsLimits) {
  HttpOptions o = quick_options();
  o.header_bytes = 2000;
  o.body_bytes = 1000;
  o.connections = 3;
  start(std::move(o));
  const auto status = [&](const std::string& sent) {
    Client client(port());
    client.send(sent);
    const int s = client.answer().status;
    client.rest();
    EXPECT_TRUE(client.closed()) << sent.substr(0, 60);
    return s;
  };
  const std::string close = "Connection: close\r\n";
  EXPECT_EQ(status(request_text("GET /", "", close + "X: " + std::string(1900, 'x') + "\r\n")), 200);
  EXPECT_EQ(status(request_text("GET /", "", close + "X: " + std::string(2000, 'x') + "\r\n")), 431);
  EXPECT_EQ(status(request_text("GET /" + std::string(200'000, 'y'))), 431);
  std::string flood;
  for (int i = 0; i < 300; ++i) flood += fmt::format("X{}: 1\r\n", i);
  EXPECT_EQ(status(request_text("GET /", "", flood)), 431);
  EXPECT_EQ(status(request_text("POST /", std::string(1000, 'b'), close)), 200);
  EXPECT_EQ(status(request_text("POST /", std::string(1001, 'b'))), 413);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'b') +
                   "\r\n0\r\n\r\n"),
            413);
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 0; }));
  Client one(port()), two(port()), three(port());
  EXPECT_TRUE(eventually([&] { return server_->stats().connections == 3; }));
  Client four(port());
  const auto answer = four.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.header("Retry-After"), "1");
}

TEST_F(HttpTest, EndsSlowRequests) {
  HttpOptions o = quick_options();
  o.idle = milliseconds(600);
  o.head = milliseconds(600);
  o.body = milliseconds(600);
  start(std::move(o));
  Client idle(port()), head(port()), body(port());
  ASSERT_TRUE(head.send("GET / HTTP/1.1\r\nHo"));
  ASSERT_TRUE(body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"));
  EXPECT_EQ(head.answer().status, 408);
  EXPECT_EQ(body.answer().status, 408);
  EXPECT_EQ(idle.rest(), "");
  EXPECT_TRUE(idle.closed());
}

TEST_F(HttpTest, RefusesWhatTwoServersMightReadDifferently) {
  start();
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\n";
  const std::pair<std::string, int> cases[] = {
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {post + "Content-Length: 3, 3\r\n\r\nabc", 400},
      {post + "Content-Length: +3\r\n\r\nabc", 400},
      {post + "Content-Length: 0x3\r\n\r\nabc", 400},
      {post + "Content-Length: -1\r\n\r\n", 400},
      {post + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {post + "Content-Length : 3\r\n\r\nabc", 400},
      {post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n", 400},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Host: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: x\n\n", 400},
      {"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400},
      {"GET /\x80 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\r\nX: a\x01z\r\n\r\n", 400},
      {std::string("GET / HTTP/1.1\r\nHost: x\r\nX: a\0z\r\n\r\n", 35), 400},
      {"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"\x16\x03\x01\x02", 400},
      {post + "Expect: 200-ok\r\nContent-Length: 1\r\n\r\na", 417},
      {post + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", 415},
  };
  for (const auto& [sent, status] : cases) {
    Client client(port());
    ASSERT_TRUE(client.send(sent));
    client.end_sending();
    EXPECT_EQ(client.answer().status, status) << sent;
    const std::string rest = client.rest();
    EXPECT_TRUE(client.closed()) << sent;
    EXPECT_EQ(rest, "") << "what follows must not be taken for a request: " << sent;
  }
}

TEST_F(HttpTest, ListensOnBothLoopbackAddressesOnly) {
  start();
  HttpOptions taken = quick_options();
  taken.port = port();
  const auto second = HttpServer::start(taken, [](HttpRequest, std::shared_ptr<HttpReply>) {});
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message.find(std::to_string(port())), std::string::npos) << second.error().message;
  HttpOptions named = quick_options();
  named.host = "example.org";
  const auto third = HttpServer::start(named, [](HttpRequest, std::shared_ptr<HttpReply>) {});
  ASSERT_FALSE(third);
  EXPECT_NE(third.error().message.find("example.org"), std::string::npos);
}

uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// The memory of both ends is counted, and that of the test.
TEST_F(HttpTest, FiveHundredOpenStreamsAreCheap) {
  HttpOptions o = quick_options();
  start(std::move(o));
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::shared_ptr<HttpReply>> replies;
  const auto open = [&] {
    clients.push_back(std::make_unique<Client>(port()));
    ASSERT_TRUE(clients.back()->send(request_text("POST /wait", std::string(3000, 'b'))));
    replies.push_back(waiting());
    replies.back()->begin(text(200, ""), {": ping\n\n", milliseconds(60'000)});
    EXPECT_NE(clients.back()->until("ping"), "");
  };
  for (int i = 0; i < 20; ++i) open();
  const uint64_t before = resident_bytes();
  for (int i = 0; i < 500; ++i) open();
  const uint64_t each = (resident_bytes() - before) / 500;
  RecordProperty("bytes_per_stream", std::to_string(each));
  EXPECT_LT(each, 64u << 10);
  EXPECT_EQ(server_->stats().answering, 520);
  // All of them still work.
  for (const auto& reply : replies) EXPECT_TRUE(reply->write("last"));
  for (const auto& reply : replies) reply->finish();
  for (const auto& client : clients) EXPECT_NE(client->until("0\r\n\r\n"), "");
}

}  // namespace
}  // namespace calla
