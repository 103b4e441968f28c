#include "server/page_api.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/formats/scratch_dir.h"
#include "tests/server/fake_reply.h"

namespace calla {
namespace {

using Json = nlohmann::json;

class PageApiTest : public testing::Test {
 protected:
  PageApiTest() { api_.add_to(router_); }
  Kept ask(const std::string& method, const std::string& target, const std::string& body = "") {
    HttpRequest request;
    request.method = method;
    request.path = target.substr(0, target.find('?'));
    if (request.path.size() < target.size()) request.query = target.substr(request.path.size() + 1);
    request.body = body;
    Kept kept;
    router_.handle(std::move(request), std::make_shared<FakeReply>(kept));
    return kept;
  }
  static std::string message(const Kept& kept) { return Json::parse(kept.body)["error"]["message"]; }

  ScratchDir folder_;
  PageApi api_{folder_ / "conversations.db"};
  Log log_{LogLevel::kError, false, stderr};
  RequestMetrics metrics_;
  Router router_{Access::make({.host = "localhost"}).value(), log_, metrics_,
                 [](int status, std::string text, std::string_view) {
                   return HttpResponse{status, "text/plain", {}, std::move(text)};
                 }};
};

constexpr const char* kTree = R"({"title": "Größe & Kites", "leaf": "b", "messages": [
  {"id": "a", "role": "user", "content": "How tall?"}, {"id": "b", "parent": "a", "role": "assistant", "content": "Quite."}]})";

TEST_F(PageApiTest, KeepsAConversation) {
  const Kept put = ask("PUT", "/api/conversations/c1", kTree);
  ASSERT_EQ(put.head.status, 200) << put.body;
  EXPECT_EQ(put.head.content_type, "application/json");
  EXPECT_EQ(header_of(put, "Cache-Control"), "no-store");
  EXPECT_EQ(Json::parse(put.body)["title"], "Größe & Kites");
  const Json back = Json::parse(ask("GET", "/api/conversations/c1").body);
  EXPECT_EQ(back["leaf"], "b");
  EXPECT_EQ(back["messages"][1]["content"], "Quite.");

  EXPECT_EQ(ask("PATCH", "/api/conversations/c1", R"({"title": "Tall"})").head.status, 200);
  EXPECT_EQ(Json::parse(ask("GET", "/api/conversations").body)["conversations"][0]["title"], "Tall");
  EXPECT_EQ(ask("DELETE", "/api/conversations/c1").head.status, 204);
  EXPECT_EQ(ask("GET", "/api/conversations/c1").head.status, 404);
  EXPECT_EQ(message(ask("DELETE", "/api/conversations/c1")), "there is no conversation c1");
}

TEST_F(PageApiTest, ListsInPagesAndSearches) {
  for (int i = 0; i < 5; ++i) {
    const std::string id = std::string(1, static_cast<char>('a' + i));
    ASSERT_EQ(ask("PUT", "/api/conversations/" + id, kTree).head.status, 200);
  }
  Json page = Json::parse(ask("GET", "/api/conversations?limit=2").body);
  EXPECT_EQ(page["more"], true);
  ASSERT_EQ(page["conversations"].size(), 2u);
  EXPECT_EQ(page["conversations"][0]["id"], "e");
  const std::string before = page["conversations"][1]["updated"].dump();
  page = Json::parse(ask("GET", "/api/conversations?limit=3&before=" + before).body);
  EXPECT_EQ(page["more"], false);
  EXPECT_EQ(page["conversations"][0]["id"], "c");
  page = Json::parse(ask("GET", "/api/conversations?q=how+TALL%3F").body);
  EXPECT_EQ(page["conversations"].size(), 5u);
  EXPECT_EQ(page["conversations"][0]["snippet"], "How tall?");
  EXPECT_EQ(Json::parse(ask("GET", "/api/conversations?q=gr%C3%B6%C3%9Fe").body)["conversations"].size(), 5u);
  EXPECT_EQ(Json::parse(ask("GET", "/api/conversations?q=nothing").body)["conversations"].size(), 0u);
}

TEST_F(PageApiTest, ExportsFiles) {
  ASSERT_EQ(ask("PUT", "/api/conversations/c1", kTree).head.status, 200);
  const Kept markdown = ask("GET", "/api/conversations/c1/export?format=markdown");
  EXPECT_EQ(markdown.head.content_type, "text/markdown; charset=utf-8");
  EXPECT_EQ(header_of(markdown, "Content-Disposition"), "attachment; filename=\"Gr-e-Kites.md\"");
  EXPECT_EQ(markdown.body, "# Größe & Kites\n\n## You\n\nHow tall?\n\n## Answer\n\nQuite.\n\n");
  const Kept json = ask("GET", "/api/conversations/c1/export?format=json");
  EXPECT_EQ(header_of(json, "Content-Disposition"), "attachment; filename=\"Gr-e-Kites.json\"");
  EXPECT_EQ(json.body, ask("GET", "/api/conversations/c1").body);
}

TEST_F(PageApiTest, RefusesByName) {
  const struct {
    const char *method, *target, *body, *words;
  } cases[] = {
      {"GET", "/api/conversations?limit=0", "", "limit must be a number from 1 to 200"},
      {"GET", "/api/conversations?limit=2x", "", "limit must be a number from 1 to 200"},
      {"GET", "/api/conversations?before=-1", "", "before must be a number from 1 to 9223372036854775807"},
      {"GET", "/api/conversations?q=%FF", "", "q is not UTF-8 or holds control characters"},
      {"GET", "/api/conversations/c1/export?format=pdf", "", "format must be markdown or json"},
      {"GET", "/api/conversations/c1/export", "", "format must be markdown or json"},
      {"PUT", "/api/conversations/c1", "{", "not valid JSON at line 1, column 2"},
      {"PUT", "/api/conversations/%2e%2e", "{}",
       "the conversation's id must be 1 to 64 letters, digits, \"-\" or \"_\""},
      {"PATCH", "/api/conversations/c1", "{}", "title is missing"},
  };
  for (const auto& c : cases) {
    const Kept refused = ask(c.method, c.target, c.body);
    EXPECT_EQ(refused.head.status, 400) << c.target;
    EXPECT_EQ(message(refused), c.words);
  }
}

TEST_F(PageApiTest, WorksAgainOnceTheFileCanBeUsed) {
  ASSERT_TRUE(write_file(folder_ / "conversations.db", std::string(5000, 'x')));
  const Kept refused = ask("GET", "/api/conversations");
  EXPECT_EQ(refused.head.status, 503);
  EXPECT_NE(message(refused).find("is not a database"), std::string::npos);
  std::filesystem::remove(folder_ / "conversations.db");
  EXPECT_EQ(ask("GET", "/api/conversations").head.status, 200);
}

}  // namespace
}  // namespace calla
