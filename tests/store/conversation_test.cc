#include "store/conversation.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

TEST(Conversation, ReadsAChange) {
  const auto change = read_change(R"({"title": " Two\n\tnames ", "leaf": "b", "settings": {"temperature": 0.5},
    "messages": [{"id": "a", "parent": null, "role": "user", "content": "Hi", "extra": [1, {"x": null}]},
                 {"id": "b", "parent": "a", "role": "assistant", "content": [{"type": "text", "text": "one"},
                  {"type": "image_url", "image_url": {}}, {"type": "text", "text": "two"}], "big": 123456789012345678901}]})");
  ASSERT_TRUE(change) << change.error().message;
  EXPECT_EQ(change->title, "Two names");
  EXPECT_EQ(change->leaf, "b");
  EXPECT_EQ(change->settings, R"({"temperature": 0.5})");
  ASSERT_EQ(change->messages.size(), 2u);
  EXPECT_EQ(change->messages[0].parent, "");
  EXPECT_EQ(change->messages[0].text, "Hi");
  EXPECT_EQ(change->messages[0].json,
            R"({"id": "a", "parent": null, "role": "user", "content": "Hi", "extra": [1, {"x": null}]})");
  EXPECT_EQ(change->messages[1].parent, "a");
  EXPECT_EQ(change->messages[1].text, "one\ntwo");
  EXPECT_NE(change->messages[1].json.find("123456789012345678901"), std::string::npos);
}

TEST(Conversation, NamesWhatIsWrong) {
  const struct {
    const char* json;
    const char* message;
  } cases[] = {
      {"[]", "a conversation must be a JSON object"},
      {"{", "not valid JSON at line 1, column 2"},
      {R"({"title": 3})", "title must be a string, not number"},
      {R"({"title": " \n "})", "title must not be empty"},
      {R"({"leaf": "a b"})", "leaf must be 1 to 64 letters, digits, \"-\" or \"_\""},
      {R"({"settings": []})", "settings must be an object"},
      {R"({"messages": {}})", "messages must be an array"},
      {R"({"messages": [1]})", "messages[0] must be an object"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].id must be 1 to 64 letters, digits, \"-\" or \"_\""},
      {R"({"messages": [{"id": "a", "role": "user"}, {"id": "../b", "role": "user"}]})",
       "messages[1].id must be 1 to 64 letters, digits, \"-\" or \"_\""},
      {R"({"messages": [{"id": "a", "parent": 1, "role": "user"}]})",
       "messages[0].parent must be a string, not number"},
      {R"({"messages": [{"id": "a", "role": "root"}]})", "messages[0].role must be system, user, assistant or tool"},
  };
  for (const auto& c : cases) {
    const auto change = read_change(c.json);
    ASSERT_FALSE(change) << c.json;
    EXPECT_EQ(change.error().message, c.message);
  }
  EXPECT_FALSE(read_change(R"({"title": ")" + std::string(kMaxTitleBytes + 1, 'x') + "\"}"));
  EXPECT_FALSE(read_change(std::string(100, '[') + std::string(100, ']')));
}

StoredConversation branches() {
  StoredConversation conversation;
  conversation.summary = {"c1", "Kites & \"wind\"", 1, 2, ""};
  const auto change = read_change(R"({"messages": [
    {"id": "q", "role": "user", "content": "Hi"},
    {"id": "old", "parent": "q", "role": "assistant", "content": "First answer"},
    {"id": "new", "parent": "q", "role": "assistant", "content": "Second answer", "reasoning_content": "Hm ``` hm",
     "tool_calls": [{"type": "function", "id": "t", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]},
    {"id": "r", "parent": "new", "role": "tool", "content": "3"}]})");
  conversation.messages = change.value().messages;
  conversation.leaf = "r";
  return conversation;
}

TEST(Conversation, WritesJsonThatReadsBack) {
  const StoredConversation conversation = branches();
  const auto json = parse_json(to_json(conversation));
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_EQ((*json)["title"], "Kites & \"wind\"");
  EXPECT_EQ((*json)["leaf"], "r");
  EXPECT_EQ((*json)["settings"], Json::object());
  const auto again = read_change(to_json(conversation));
  ASSERT_TRUE(again) << again.error().message;
  ASSERT_EQ(again->messages.size(), conversation.messages.size());
  for (size_t i = 0; i < again->messages.size(); ++i) {
    EXPECT_EQ(again->messages[i].json, conversation.messages[i].json);
    EXPECT_EQ(again->messages[i].parent, conversation.messages[i].parent);
  }
}

TEST(Conversation, WritesTheBranchThatIsShownAsMarkdown) {
  EXPECT_EQ(to_markdown(branches()),
            "# Kites & \"wind\"\n\n## You\n\nHi\n\n## Answer\n\n<details><summary>Thinking</summary>\n\n"
            "````\nHm ``` hm\n````\n\n</details>\n\nSecond answer\n\nCalls `add`:\n\n```json\n{\"a\": 1}\n```\n\n"
            "## Tool result\n\n```\n3\n```\n\n");
}

}  // namespace
}  // namespace calla
