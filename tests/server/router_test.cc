#include "server/router.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/fake_reply.h"

namespace calla {
namespace {

class RouterTest : public testing::Test {
 protected:
  RouterTest() : file_(::open_memstream(&text_, &size_)) {
    const auto echo = [](Call call) {
      std::string all;
      for (const std::string& p : call.params) all += "[" + p + "]";
      call.reply->note("tokens", int64_t{3});
      call.reply->send({200, "text/plain", {}, call.request.method + all});
    };
    router_.add("GET", "/health", echo, {.open = true, .quiet = true});
    router_.add("GET", "/", echo, {.open = true});
    router_.add("GET", "/c/{id}", echo);
    router_.add("DELETE", "/c/{id}", echo);
    router_.add("POST", "/c/{id}/m/{m}", echo);
    router_.add("POST", "/stream", [this](Call call) { streaming_ = call.reply; });
    router_.add("POST", "/throw", [](Call) { throw std::bad_alloc(); });
  }
  ~RouterTest() override {
    std::fclose(file_);
    ::free(text_);
  }
  Kept ask(const std::string& method, const std::string& path, std::vector<HttpHeader> headers = {}) {
    HttpRequest request;
    request.id = 9;
    request.method = method;
    request.path = path;
    request.headers = std::move(headers);
    request.arrived = std::chrono::steady_clock::now();
    Kept kept;
    router_.handle(std::move(request), std::make_shared<FakeReply>(kept));
    return kept;
  }
  std::string log() {
    std::fflush(file_);
    return {text_, size_};
  }

  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
  Log log_{LogLevel::kInfo, false, file_};
  RequestMetrics metrics_;
  Router router_{*Access::make({.host = "localhost", .api_key = "key", .allow_origins = {"https://app.example"}}), log_,
                 metrics_, [](int status, std::string message, std::string_view path) {
                   return HttpResponse{status, "text/plain", {}, std::string(path) + ": " + message};
                 }};
  std::shared_ptr<CallReply> streaming_;
};

TEST_F(RouterTest, FindsPathsAndMethods) {
  EXPECT_EQ(ask("GET", "/").body, "GET");
  EXPECT_EQ(ask("HEAD", "/").head.status, 200);
  EXPECT_EQ(ask("GET", "/c/a%20b%2Fc").body, "GET[a b/c]");
  EXPECT_EQ(ask("POST", "/c/1/m/2").body, "POST[1][2]");
  for (const char* path : {"/nothing", "/c", "/c/", "/c/1/2", "//", "/health/", "/../etc/passwd", "/c/%", "/c/%4",
                           "/c/%zz", "/c/%00", "/c/%0a", "/c/%ff", "/c/..", "/HEALTH"}) {
    if (std::string(path) == "/c/..") {
      EXPECT_EQ(ask("GET", path).body, "GET[..]") << "a name like any other; no file is behind it";
    } else {
      EXPECT_EQ(ask("GET", path).head.status, 404) << path;
    }
  }
  router_.add("POST", "/v1/messages", [](const Call&) {});
  EXPECT_NE(ask("POST", "/messages").body.find("should end in /v1"), std::string::npos);
  EXPECT_NE(ask("POST", "/v1/v1/messages").body.find("should not end in /v1"), std::string::npos);
  const Kept wrong = ask("PUT", "/c/1");
  EXPECT_EQ(wrong.head.status, 405);
  EXPECT_EQ(header_of(wrong, "Allow"), "GET, HEAD, DELETE, OPTIONS");
  EXPECT_EQ(ask("POST", "/throw").head.status, 500);
}

TEST_F(RouterTest, AnswersPreflights) {
  const Kept own =
      ask("OPTIONS", "/c/1", {{"Origin", "https://app.example"}, {"Access-Control-Request-Method", "DELETE"}});
  EXPECT_EQ(own.head.status, 204);
  EXPECT_EQ(header_of(own, "Access-Control-Allow-Methods"), "GET, HEAD, DELETE");
  EXPECT_EQ(header_of(ask("OPTIONS", "/c/1"), "Access-Control-Allow-Methods"), "");
  EXPECT_EQ(header_of(ask("GET", "/c/1", {{"Origin", "https://app.example"}}), "Access-Control-Allow-Origin"),
            "https://app.example");
  EXPECT_EQ(header_of(ask("GET", "/c/1", {{"Origin", "http://localhost:1"}}), "Access-Control-Allow-Origin"), "");
}

TEST_F(RouterTest, AdmitsOnlyWithAKeyButForOpenPaths) {
  const auto status = [&](const std::string& method, const std::string& path, const std::string& key = "") {
    HttpRequest head;
    head.method = method;
    head.path = path;
    head.headers = {{"Host", "localhost"}, {"X-Api-Key", key}};
    const auto refusal = router_.admit(head);
    return refusal ? refusal->status : 0;
  };
  EXPECT_EQ(status("GET", "/health"), 0);
  EXPECT_EQ(status("OPTIONS", "/c/1"), 0);
  EXPECT_EQ(status("GET", "/c/1"), 401);
  EXPECT_EQ(status("GET", "/unknown"), 401);
  EXPECT_EQ(status("GET", "/c/1", "key"), 0);
  EXPECT_NE(log().find("refused path=/c/1 status=401"), std::string::npos) << log();
}

TEST_F(RouterTest, WritesOneLineForEachCall) {
  ask("GET", "/health");
  EXPECT_EQ(log(), "") << "quiet";
  ask("GET", "/c/1");
  EXPECT_NE(log().find("#9 request method=GET path=/c/1 status=200 seconds="), std::string::npos) << log();
  EXPECT_NE(log().find("tokens=3\n"), std::string::npos) << log();
}

TEST_F(RouterTest, TellsOfVanishedClients) {
  const Kept kept = ask("POST", "/stream");
  ASSERT_TRUE(kept.closed);
  int told = 0;
  streaming_->on_close([&] { ++told; });
  kept.closed();
  EXPECT_EQ(told, 1);
  streaming_->on_close([&] { ++told; });
  EXPECT_EQ(told, 2);
  streaming_ = nullptr;
  EXPECT_NE(log().find("path=/stream status=499"), std::string::npos) << log();
  EXPECT_EQ(log().find("status=500"), std::string::npos) << log();
  const Kept done = ask("POST", "/stream");
  streaming_->begin({200, "", {}, ""}, {"", {}});
  streaming_->complete();
  done.closed();
  EXPECT_NE(log().find("path=/stream status=200"), std::string::npos) << log();
  streaming_ = nullptr;
  MetricsText out;
  metrics_.write(out);
  EXPECT_NE(out.text().find("calla_http_requests_total{route=\"/stream\",status=\"499\"} 1\n"), std::string::npos);
}

}  // namespace
}  // namespace calla
