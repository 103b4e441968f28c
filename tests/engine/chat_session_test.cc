#include "engine/chat_session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/engine/fake.h"

namespace calla {
namespace {

using namespace fake;  // NOLINT

GenerateOptions greedy() {
  GenerateOptions o;
  o.sampling.temperature = 0;
  return o;
}

struct Heard {
  std::string reasoning, answer;
  ChatSession::OnText hear() {
    return [this](std::string_view text, bool thought) {
      (thought ? reasoning : answer) += text;
      return true;
    };
  }
};

TEST(ChatSession, WithoutThinkingATurnReadsOnlyWhatIsNew) {
  FakeModel fake = make_model(replies([](const std::string& user) { return "You said " + user + "."; }));
  auto session = ChatSession::start(*fake.model);
  session->set_thinking(false);
  session->set_system("Be brief.");
  for (const char* text : {"one", "two", "three", "four", "five", "six"}) {
    Heard heard;
    fake.runner->read = 0;
    const auto g = session->say(text, greedy(), heard.hear());
    ASSERT_TRUE(g) << g.error().message;
    EXPECT_EQ(heard.answer, "You said " + std::string(text) + ".");
    EXPECT_EQ(heard.reasoning, "");
    // Everything but the turn itself was there: its text, its markers, its answer.
    EXPECT_LT(fake.runner->read, 100) << text;
  }
  EXPECT_EQ(session->turns(), 6);
}

TEST(ChatSession, WithThinkingAMarkSavesTheConversation) {
  const std::string thought(300, 't');
  FakeModel fake =
      make_model(replies([&](const std::string& user) { return thought + "\n</think>\n\nYou said " + user + "."; }));
  auto session = ChatSession::start(*fake.model);
  for (const char* text : {"one", "two", "three", "four", "five", "six", "seven"}) {
    Heard heard;
    fake.runner->read = 0;
    const auto g = session->say(text, greedy(), heard.hear());
    ASSERT_TRUE(g);
    EXPECT_EQ(heard.answer, "You said " + std::string(text) + ".");
    EXPECT_EQ(heard.reasoning, thought);
    // One thought is generated; the old ones are neither read nor kept. The last answer is read again, without its
    // thought.
    EXPECT_LT(fake.runner->read, 300 + 140) << text;
  }
}

TEST(ChatSession, RegeneratesFromTheMark) {
  int calls = 0;
  FakeModel fake = make_model(replies([&](const std::string&) { return "abc"; }));
  auto session = ChatSession::start(*fake.model);
  session->set_thinking(false);
  EXPECT_FALSE(session->has_answer());
  EXPECT_FALSE(session->regenerate(greedy(), [](auto, bool) { return true; }));
  ASSERT_TRUE(session->say(std::string(1000, 'x'), greedy(), [](auto, bool) { return true; }));
  fake.runner->read = 0;
  const auto g = session->regenerate(greedy(), [&](auto, bool) { return ++calls > 0; });
  ASSERT_TRUE(g);
  EXPECT_EQ(g->text, "abc");
  EXPECT_EQ(calls, 3);
  EXPECT_LT(fake.runner->read, 50);
  EXPECT_EQ(session->turns(), 1);
}

TEST(ChatSession, CancelledAnswersAreKeptAsFarAsTheyCame) {
  FakeModel fake = make_model(replies([](const std::string&) { return "a long answer"; }));
  auto session = ChatSession::start(*fake.model);
  session->set_thinking(false);
  auto g = session->say("hi", greedy(), [](std::string_view text, bool) { return text != "n"; });
  ASSERT_TRUE(g);
  EXPECT_EQ(g->finish, FinishReason::kCancelled);
  EXPECT_EQ(session->conversation().messages.back().content[0].text, "a lon");
  // Before the first token: as if it had not been asked.
  std::atomic<bool> cancel = true;
  GenerateOptions o = greedy();
  o.cancel = &cancel;
  g = session->say("again", o, [](auto, bool) { return true; });
  ASSERT_TRUE(g);
  EXPECT_EQ(session->turns(), 1);
  g = session->regenerate(o, [](auto, bool) { return true; });
  EXPECT_TRUE(session->has_answer());
}

TEST(ChatSession, SaysWhenTheContextIsFull) {
  FakeModel fake = make_model(replies([](const std::string&) { return "ok"; }), 200);
  auto session = ChatSession::start(*fake.model);
  session->set_thinking(false);
  ASSERT_TRUE(session->say("hi", greedy(), [](auto, bool) { return true; }));
  const auto g = session->say(std::string(300, 'x'), greedy(), [](auto, bool) { return true; });
  ASSERT_FALSE(g);
  EXPECT_NE(g.error().message.find("/clear"), std::string::npos);
  EXPECT_EQ(session->turns(), 1) << "the message that did not fit was kept";
  session->clear();
  EXPECT_EQ(session->turns(), 0);
  EXPECT_TRUE(session->say("hi", greedy(), [](auto, bool) { return true; }));
}

TEST(ChatSession, SavesAndLoads) {
  FakeModel fake = make_model(replies([](const std::string& user) { return "thought\n</think>\n\n\"" + user + "\""; }));
  auto session = ChatSession::start(*fake.model);
  session->set_system("Be \"brief\".");
  ASSERT_TRUE(session->say("hé\n", greedy(), [](auto, bool) { return true; }));
  const std::string path = testing::TempDir() + "calla_chat_" + std::to_string(getpid()) + ".json";
  ASSERT_TRUE(session->save(path));
  auto other = ChatSession::start(*fake.model);
  ASSERT_TRUE(other->load(path));
  EXPECT_EQ(other->system(), "Be \"brief\".");
  EXPECT_EQ(other->turns(), 1);
  EXPECT_EQ(other->conversation().messages.back().reasoning, "thought");
  EXPECT_EQ(*fake.model->encode(other->conversation()), *fake.model->encode(session->conversation()));

  ASSERT_TRUE(write_file(
      path, R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}]})"));
  EXPECT_FALSE(other->load(path));
  ASSERT_TRUE(write_file(path, "{"));
  EXPECT_FALSE(other->load(path));
  EXPECT_EQ(other->turns(), 1);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace calla
