// The chat on a terminal, as a person meets it.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tests/app/program.h"

namespace calla {
namespace {

// The editor switches bracketed paste on just before it shows the prompt.
constexpr const char* kPrompt = "\x1b[?2004h> ";
constexpr const char* kMore = "\x1b[?2004h. ";

class ChatTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(has_bud()) << "models/bud is not there";
    ::setenv("XDG_STATE_HOME", (dir_ / "state").c_str(), 1);
  }
  static std::vector<std::string> chat(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"chat", "--temperature", "0", "--max-tokens", "12"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  TempDir dir_;
};

TEST_F(ChatTest, TalksAndRemembers) {
  {
    Terminal t(chat());
    ASSERT_TRUE(t.expect("/help explains")) << t.rest();
    ASSERT_TRUE(t.expect(kPrompt));
    t.type("Tell me a story\r");
    ASSERT_TRUE(t.expect(kPrompt)) << t.rest();
    t.type("/stats\r");
    ASSERT_TRUE(t.expect("tok/s")) << t.rest();
    ASSERT_TRUE(t.expect("context: "));
    t.type("/regenerate\r");
    ASSERT_TRUE(t.expect(kPrompt)) << t.rest();
    t.type("/nonsense\r");
    ASSERT_TRUE(t.expect("there is no /nonsense")) << t.rest();
    t.type("/save " + (dir_ / "c.json") + "\r");
    ASSERT_TRUE(t.expect("(1 turns)")) << t.rest();
    t.type("/quit\r");
    EXPECT_EQ(t.wait(), 0);
  }
  struct stat history {};
  ASSERT_EQ(::stat((dir_ / "state/calla/history").c_str(), &history), 0);
  EXPECT_EQ(history.st_mode & 0777, 0600u);
  // The saved conversation goes on, and the history is there: arrow up, four lines back.
  Terminal t(chat({"--resume", dir_ / "c.json"}));
  ASSERT_TRUE(t.expect(kPrompt));
  t.type("\x1b[A");
  ASSERT_TRUE(t.expect("/quit")) << t.rest();
  t.type("\r");
  EXPECT_EQ(t.wait(), 0);
}

TEST_F(ChatTest, InterruptsStopTheAnswerNotTheProgram) {
  Terminal t({"chat", "--seed", "3", "--temperature", "2"});
  ASSERT_TRUE(t.expect(kPrompt));
  t.type("half a line\x03");  // gives the line up
  ASSERT_TRUE(t.expect("^C")) << t.rest();
  ASSERT_TRUE(t.expect("/quit leaves")) << t.rest();
  ASSERT_TRUE(t.expect(kPrompt));
  t.type("Tell me a very long story\r");
  ASSERT_TRUE(t.expect("story")) << t.rest();
  ASSERT_TRUE(t.expect("\x1b[?2004l"));  // the line is read, the terminal sends signals again
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  t.type("\x03");
  ASSERT_TRUE(t.expect(kPrompt)) << t.rest();
  t.type("/system Be kind.\r");
  ASSERT_TRUE(t.expect("system: Be kind.")) << t.rest();
  ASSERT_TRUE(t.expect(kPrompt));  // before it, Ctrl-D is not yet a key
  t.type("\x04");
  EXPECT_EQ(t.wait(), 0);
}

TEST_F(ChatTest, LongMessages) {
  Terminal t(chat());
  ASSERT_TRUE(t.expect(kPrompt));
  t.type("one \\\r");
  ASSERT_TRUE(t.expect(kMore)) << t.rest();
  t.type("two\r");
  ASSERT_TRUE(t.expect(kPrompt)) << t.rest();
  t.type("\"\"\"\r");
  ASSERT_TRUE(t.expect(kMore));
  t.type("three\r");
  ASSERT_TRUE(t.expect(kMore));
  t.type("\"\"\"\r");
  ASSERT_TRUE(t.expect(kPrompt)) << t.rest();
  t.type("\x1b[200~pasted\rtext é\x1b[201~\r");
  ASSERT_TRUE(t.expect(kPrompt)) << t.rest();
  t.type("/save " + (dir_ / "c.json") + "\r");
  ASSERT_TRUE(t.expect("(3 turns)")) << t.rest();
  ASSERT_TRUE(t.expect(kPrompt));
  t.type("\x04");
  EXPECT_EQ(t.wait(), 0);
  const std::string saved = *read_file(dir_ / "c.json");
  EXPECT_NE(saved.find(R"("one \ntwo")"), std::string::npos) << saved;
  EXPECT_NE(saved.find(R"("three")"), std::string::npos) << saved;
  EXPECT_NE(saved.find(R"("pasted\ntext é")"), std::string::npos) << saved;
}

TEST_F(ChatTest, APipeCarriesOnlyAnswers) {
  const Ran ran = run_program(chat(), "Tell me a story\n/stats\n");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_GT(ran.out.size(), 5u);
  EXPECT_EQ(ran.out.find("tok/s"), std::string::npos);
  EXPECT_NE(ran.err.find("tok/s"), std::string::npos);
}

// What a turn keeps and rolls back must not change what is said: in f64, every answer is the one of a program that
// reads the whole conversation anew. (On the CPU, passes of different lengths round differently, and a near-tie may
// fall either way.)
TEST_F(ChatTest, ReuseChangesNothing) {
  for (const std::string thinking : {"--thinking", "--no-thinking"}) {
    const Ran ran = run_program(chat({"--device", "reference", thinking}),
                                "Tell me a story\nWho was it about?\n/save " + (dir_ / "a.json") +
                                    "\n/regenerate\n/save " + (dir_ / "b.json") + "\n");
    ASSERT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(*read_file(dir_ / "a.json"), *read_file(dir_ / "b.json")) << "greedy, so the same again";
    nlohmann::json request = nlohmann::json::parse(*read_file(dir_ / "a.json"));
    ASSERT_EQ(request["messages"].size(), 4u);
    const nlohmann::json last = request["messages"][3];
    request["messages"].erase(3);
    const bool off = thinking == "--no-thinking";
    request["chat_template_kwargs"] = {{"enable_thinking", !off}, {"preserve_thinking", off}};
    ASSERT_TRUE(write_file(dir_ / "r.json", request.dump()));
    const Ran anew = run_program({"run", "--device", "reference", "--temperature", "0", "--max-tokens", "12", "--json",
                                  "--request", dir_ / "r.json"});
    ASSERT_EQ(anew.code, 0) << anew.err;
    const nlohmann::json out = nlohmann::json::parse(anew.out);
    EXPECT_EQ(out["content"], last["content"]);
    EXPECT_EQ(out["reasoning_content"], last.value("reasoning_content", ""));
  }
}

}  // namespace
}  // namespace calla
