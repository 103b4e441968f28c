#include "server/security.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace calla {
namespace {

HttpRequest asked(std::vector<HttpHeader> headers) {
  HttpRequest request;
  request.method = "POST";
  request.path = "/v1/chat/completions";
  request.headers = std::move(headers);
  return request;
}

// The status of the refusal, 0 for none.
int status(const Access& access, std::vector<HttpHeader> headers, bool needs_key = true) {
  const auto refusal = access.check(asked(std::move(headers)), needs_key);
  return refusal ? refusal->status : 0;
}

Access make(AccessOptions options) {
  auto access = Access::make(std::move(options));
  EXPECT_TRUE(access) << access.error().message;
  return *access;
}

TEST(Security, LoopbackNamesOnly) {
  const Access access = make({.host = "localhost"});
  for (const char* host : {"localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.9.9.9", "[::1]:80", "[::1]"}) {
    EXPECT_EQ(status(access, {{"Host", host}}), 0) << host;
  }
  for (const char* host : {"", "evil.example", "localhost.evil.example", "localhost:80x", "192.168.1.2:80", "[::1",
                           "::1", "127.0.0.1.evil.example", "evil.example#localhost", "localhost@evil.example",
                           "[fe80::1]", "0.0.0.0", "127.1", "2130706433"}) {
    EXPECT_EQ(status(access, {{"Host", host}}), 403) << host;
  }
  EXPECT_EQ(status(access, {}), 403);
}

TEST(Security, NamedHosts) {
  const Access access = make({.host = "localhost", .allow_hosts = {"Box.Local"}});
  EXPECT_EQ(status(access, {{"Host", "box.local:8080"}}), 0);
  EXPECT_EQ(status(access, {{"Host", "box.local.evil"}}), 403);
}

TEST(Security, BeyondTheLoopbackAKeyIsNeeded) {
  EXPECT_NE(Access::make({.host = "0.0.0.0"}).error().message.find("--api-key"), std::string::npos);
  EXPECT_FALSE(Access::make({.host = "192.168.1.2", .api_key = "short"}));
  EXPECT_FALSE(Access::make({.host = "::", .api_key = ""}));
  const Access access = make({.host = "0.0.0.0", .api_key = "long-enough"});
  const HttpHeader key = {"Authorization", "Bearer long-enough"};
  EXPECT_EQ(status(access, {{"Host", "192.168.1.2:80"}, key}), 0);
  EXPECT_EQ(status(access, {{"Host", "[fe80::1]:80"}, key}), 0);
  EXPECT_EQ(status(access, {{"Host", "rebound.example"}, key}), 403)
      << "a name that a foreign DNS server may point here";
}

TEST(Security, Keys) {
  const Access access = make({.host = "localhost", .api_key = "secret"});
  const HttpHeader host = {"Host", "localhost"};
  EXPECT_EQ(status(access, {host}), 401);
  EXPECT_EQ(status(access, {host}, false), 0);
  EXPECT_EQ(status(access, {host, {"Authorization", "Bearer secret"}}), 0);
  EXPECT_EQ(status(access, {host, {"authorization", "bearer secret"}}), 0);
  EXPECT_EQ(status(access, {host, {"x-api-key", "secret"}}), 0);
  for (const char* wrong : {"secre", "secret ", "secrets", "", "Secret"}) {
    EXPECT_EQ(status(access, {host, {"x-api-key", wrong}}), 401) << wrong;
    EXPECT_EQ(status(access, {host, {"Authorization", std::string("Bearer ") + wrong}}), 401) << wrong;
  }
  EXPECT_EQ(status(access, {host, {"Authorization", "Basic secret"}}), 401);
  EXPECT_FALSE(Access::make({.host = "localhost", .api_key = "with space"}));
}

TEST(Security, Origins) {
  const Access access = make({.host = "localhost", .allow_hosts = {"box"}, .allow_origins = {"https://App.example"}});
  const HttpHeader host = {"Host", "localhost:8080"};
  for (const char* origin : {"http://localhost:8080", "http://localhost:5173", "https://127.0.0.1", "http://[::1]:3000",
                             "https://app.example"}) {
    EXPECT_EQ(status(access, {host, {"Origin", origin}}), 0) << origin;
  }
  for (const char* origin : {"null", "https://evil.example", "http://app.example", "https://app.example:444",
                             "https://app.example.evil", "http://localhost.evil", "http://localhost@evil.example",
                             "file://", "http://", "http://localhost/", "chrome-extension://localhost"}) {
    EXPECT_EQ(status(access, {host, {"Origin", origin}}), 403) << origin;
  }
  EXPECT_EQ(status(access, {{"Host", "box:1"}, {"Origin", "http://box:1"}}), 0) << "its own page";
  EXPECT_EQ(status(access, {{"Host", "box:1"}, {"Origin", "http://box:2"}}), 403);
}

std::string header(const std::vector<HttpHeader>& headers, std::string_view name) {
  for (const HttpHeader& h : headers) {
    if (h.name == name) return h.value;
  }
  return "";
}

TEST(Security, OnlyListedOriginsMayRead) {
  const Access access = make({.host = "localhost", .allow_origins = {"https://app.example"}});
  EXPECT_TRUE(access.cors(asked({{"Host", "localhost"}})).empty());
  EXPECT_TRUE(access.cors(asked({{"Origin", "http://localhost:5173"}})).empty());
  const auto listed = access.cors(asked({{"Origin", "https://app.example"}}));
  EXPECT_EQ(header(listed, "Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_EQ(header(listed, "Vary"), "Origin");
  const auto preflight = access.preflight(
      asked({{"Origin", "https://app.example"}, {"Access-Control-Request-Headers", "content-type,authorization"}}),
      "POST");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(header(preflight.headers, "Access-Control-Allow-Methods"), "POST");
  EXPECT_EQ(header(preflight.headers, "Access-Control-Allow-Headers"), "content-type,authorization");
  const auto foreign = access.preflight(asked({{"Origin", "http://localhost:1"}}), "POST");
  EXPECT_EQ(header(foreign.headers, "Access-Control-Allow-Methods"), "");
  EXPECT_EQ(header(foreign.headers, "Allow"), "POST, OPTIONS");
}

TEST(Security, RefusesSettingsThatCanNeverWork) {
  EXPECT_FALSE(Access::make({.host = "localhost", .allow_hosts = {"box:80"}}));
  EXPECT_FALSE(Access::make({.host = "localhost", .allow_hosts = {"http://box"}}));
  EXPECT_FALSE(Access::make({.host = "localhost", .allow_hosts = {""}}));
  EXPECT_FALSE(Access::make({.host = "localhost", .allow_origins = {"app.example"}}));
  EXPECT_FALSE(Access::make({.host = "localhost", .allow_origins = {"https://app.example/"}}));
  EXPECT_FALSE(Access::make({.host = "localhost", .allow_origins = {"*"}}));
  EXPECT_TRUE(Access::make({.host = "localhost", .api_key = "k", .allow_origins = {"*"}}));
}

TEST(Security, ComparesWholeTexts) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abcd"));
  EXPECT_FALSE(equal_in_constant_time(std::string_view("a\0b", 3), "a"));
}

}  // namespace
}  // namespace calla
