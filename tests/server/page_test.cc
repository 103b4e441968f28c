#include "server/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/server/fake_reply.h"

namespace calla {
namespace {

class PageTest : public testing::Test {
 protected:
  Kept get(const std::string& path, std::vector<HttpHeader> headers = {}) {
    HttpRequest request;
    request.method = "GET";
    request.path = path;
    request.headers = std::move(headers);
    Kept kept;
    router_.handle(std::move(request), std::make_shared<FakeReply>(kept));
    return kept;
  }
  Log log_{LogLevel::kError, false, stderr};
  RequestMetrics metrics_;
  // A key is needed beyond the page: without it, nobody could type it in.
  Router router_{Access::make({.host = "localhost", .api_key = "a-long-key"}).value(), log_, metrics_,
                 [](int status, std::string message, std::string_view) {
                   return HttpResponse{status, "text/plain", {}, std::move(message)};
                 }};
};

constexpr PageFile kFiles[] = {
    {"/", "text/html; charset=utf-8", "\"abc\"", "<html>", "zipped html"},
    {"/assets/font-1.woff2", "font/woff2", "\"def\"", "font", ""},
};

TEST_F(PageTest, ServesFilesToEverybody) {
  add_page(router_, kFiles);
  const Kept page = get("/");
  EXPECT_EQ(page.head.status, 200);
  EXPECT_EQ(page.body, "<html>");
  EXPECT_EQ(page.head.content_type, "text/html; charset=utf-8");
  EXPECT_EQ(header_of(page, "ETag"), "\"abc\"");
  EXPECT_EQ(header_of(page, "Cache-Control"), "no-cache");
  EXPECT_EQ(header_of(page, "Vary"), "Accept-Encoding");
  EXPECT_EQ(header_of(page, "Content-Encoding"), "");
  EXPECT_EQ(header_of(page, "Content-Security-Policy"), kPagePolicy);
  const Kept font = get("/assets/font-1.woff2", {{"Accept-Encoding", "gzip"}});
  EXPECT_EQ(font.body, "font");
  EXPECT_EQ(header_of(font, "Cache-Control"), "public, max-age=31536000, immutable");
  EXPECT_EQ(header_of(font, "Content-Encoding"), "");
  EXPECT_EQ(get("/assets/other").head.status, 404);
  EXPECT_EQ(get("/index.html").head.status, 404);
}

TEST_F(PageTest, CompressesForThoseWhoAccept) {
  add_page(router_, kFiles);
  const struct {
    const char* accept;
    bool gzip;
  } cases[] = {{"gzip", true},
               {"br, gzip, zstd", true},
               {"br;q=1.0,gzip;q=0.5", true},
               {"*", true},
               {"gzip;q=0", false},
               {"gzip;q=0.0, br", false},
               {"br", false},
               {"", false},
               {"x-gzipped, br", false},
               {"gzip;q=0.001", true},
               {"deflate,gzip", true}};
  for (const auto& c : cases) {
    const Kept page = get("/", {{"Accept-Encoding", c.accept}});
    EXPECT_EQ(page.body, c.gzip ? "zipped html" : "<html>") << c.accept;
    EXPECT_EQ(header_of(page, "Content-Encoding"), c.gzip ? "gzip" : "") << c.accept;
  }
}

TEST_F(PageTest, SendsNothingTwice) {
  add_page(router_, kFiles);
  for (const char* known : {"\"abc\"", "W/\"abc\"", "\"x\", \"abc\"", "*"}) {
    const Kept page = get("/", {{"If-None-Match", known}});
    EXPECT_EQ(page.head.status, 304) << known;
    EXPECT_EQ(page.body, "") << known;
    EXPECT_EQ(header_of(page, "ETag"), "\"abc\"") << known;
  }
  EXPECT_EQ(get("/", {{"If-None-Match", "\"ab\""}}).head.status, 200);
}

TEST_F(PageTest, SaysHowToBuildIt) {
  add_page(router_, std::span<const PageFile>{});
  const Kept page = get("/");
  EXPECT_EQ(page.head.status, 200);
  EXPECT_NE(page.body.find("make web"), std::string::npos);
}

// What the build has embedded is what lies in web/dist.
TEST(PageFiles, AreThoseOfTheBuild) {
  const std::filesystem::path dist = std::filesystem::path(CALLA_SOURCE_DIR) / "web/dist";
  size_t files = 0;
  for (const PageFile& file : page_files()) {
    const auto path = dist / (file.path == "/" ? "index.html" : std::string(file.path.substr(1)));
    const auto content = read_file(path);
    ASSERT_TRUE(content) << content.error().message;
    EXPECT_TRUE(file.bytes == *content) << path;
    EXPECT_TRUE(file.gzip.empty() || file.gzip.starts_with("\x1f\x8b")) << path;
    EXPECT_EQ(file.gzip.empty(), path.extension() == ".woff2") << path;
    EXPECT_TRUE(file.gzip.size() < file.bytes.size() || file.bytes.size() < 400) << path;
    ++files;
  }
  size_t expected = 0;
  if (std::filesystem::exists(dist)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dist)) expected += entry.is_regular_file();
  }
  EXPECT_EQ(files, expected) << "build again after make web";
}

}  // namespace
}  // namespace calla
