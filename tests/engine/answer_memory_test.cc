#include "engine/answer_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "text/chat_request.h"

namespace calla {
namespace {

constexpr const char* kTools = R"([{"type": "function", "function": {"name": "read", "parameters": {"type": "object",
  "properties": {"path": {"type": "string"}, "lines": {"type": "array"}, "deep": {"type": "number"}}}}}])";

class AnswerMemoryTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    RunnerOptions options;
    options.context = 512;
    auto opened = Model::open(CALLA_SOURCE_DIR "/models/bud", options);
    ASSERT_TRUE(opened) << opened.error().message;
    model_ = opened->release();
  }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }
  // messages: JSON, without the brackets.
  static Conversation conversation(const std::string& messages, bool thinking = true, const std::string& more = "") {
    auto c =
        parse_conversation(std::string(R"({"tools": )") + kTools + R"(, "messages": [)" + messages + "]" + more + "}");
    EXPECT_TRUE(c) << c.error().message;
    c->thinking = thinking;
    return std::move(*c);
  }
  ChatPrompt encode(const Conversation& c) { return encode_chat(*model_, c, memory_).value(); }

  // An answer of this text, as a model would give it that cuts it into tokens in its own way: letter by letter.
  static Generation says(const std::string& text) {
    Generation g;
    g.text = text;
    for (size_t i = 0; i < text.size();) {
      std::vector<int32_t> ids;
      for (const char* marker : {"<think>", "</think>", "<tool_call>", "</tool_call>"}) {
        if (text.compare(i, std::string_view(marker).size(), marker) != 0) continue;
        ids.push_back(*model_->tokenizer().control_id(marker));
        i += std::string_view(marker).size();
      }
      if (ids.empty()) model_->tokenizer().encode(text.substr(i++, 1), ids);
      for (const int32_t id : ids) g.tokens.push_back({id, 0, {}});
    }
    g.tokens.push_back({model_->stop_ids()[0], 0, {}});
    return g;
  }
  static std::vector<int32_t> path(const ChatPrompt& prompt, const Generation& g) {
    std::vector<int32_t> all = prompt.ids;
    for (const Sampled& t : g.tokens) all.push_back(t.id);
    all.pop_back();
    return all;
  }
  static size_t shared(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    return std::ranges::mismatch(a, b).in1 - a.begin();
  }
  std::string text(const std::vector<int32_t>& ids) {
    std::string out;
    for (const int32_t id : ids) out += model_->tokenizer().bytes(id);
    return out;
  }

  static Model* model_;
  AnswerMemory memory_;
};
Model* AnswerMemoryTest::model_ = nullptr;

const std::string kQuestion =
    R"({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is in a.txt?"})";
const std::string kSaid =
    "I should look.\n</think>\n\nLet me see.\n\n<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n"
    "<parameter=lines>\n[1,2]\n</parameter>\n</function>\n</"
    "tool_call>\n<tool_call>\n<function=read>\n<parameter=deep>\n1\n"
    "</parameter>\n</function>\n</tool_call>";
const std::string kResults = R"(, {"role": "tool", "content": "one"}, {"role": "tool", "content": "two"})";

// What clients make of the same answer: reasoning echoed, dropped, changed, folded into the content; arguments printed
// in another order and with other spaces.
TEST_F(AnswerMemoryTest, TheModelsOwnTokensStandInForTheClientsVersion) {
  const ChatPrompt first = encode(conversation(kQuestion));
  EXPECT_TRUE(first.in_reasoning);
  const Generation said = says(kSaid);
  memory_.remember(*model_, first.ids, said, std::make_shared<ToolTypes>(conversation(kQuestion).tools));
  const auto whole = path(first, said);
  const std::string calls =
      R"("tool_calls": [{"function": {"name": "read", "arguments": "{\"lines\":[1,2],\"path\":\"a.txt\"}"}},
                        {"function": {"name": "read", "arguments": {"deep": 1.0}}}])";
  for (const std::string& answer : {
           R"({"role": "assistant", "content": "Let me see.", "reasoning_content": "I should look.", )" + calls + "}",
           R"({"role": "assistant", "content": "Let me see.\n", )" + calls + "}",
           R"({"role": "assistant", "content": [{"type": "text", "text": "Let me see."}], "reasoning": "Other.", )" +
               calls + "}",
           R"({"role": "assistant", "content": "<think>\nI should\n</think>\n\nLet me see.", )" + calls + "}",
       }) {
    const ChatPrompt next = encode(conversation(kQuestion + ", " + answer + kResults));
    EXPECT_EQ(shared(whole, next.ids), whole.size()) << answer;
    EXPECT_NE(text(next.ids).find("</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\none\n"),
              std::string::npos);
    EXPECT_EQ(next.boundaries.back(), static_cast<int>(next.ids.size()) - 2) << "before <think> and its line end";
  }
}

// Another text, another call, another value, or another history: the client's version counts.
TEST_F(AnswerMemoryTest, WhatPeopleSeeMustBeTheSame) {
  const ChatPrompt first = encode(conversation(kQuestion));
  const Generation said = says(kSaid);
  memory_.remember(*model_, first.ids, said, std::make_shared<ToolTypes>(conversation(kQuestion).tools));
  const auto call = [](const char* arguments) {
    return std::string(R"({"function": {"name": "read", "arguments": )") + arguments + "}}";
  };
  const std::string one = call(R"({"path": "a.txt", "lines": [1, 2]})"), two = call(R"({"deep": 1})");
  const auto spliced = [&](const std::string& question, const std::string& content, const std::string& calls) {
    const ChatPrompt next = encode(conversation(question + R"(, {"role": "assistant", "content": ")" + content +
                                                R"(", "tool_calls": [)" + calls + "]}" + kResults));
    return text(next.ids).find("I should look.") != std::string::npos;
  };
  EXPECT_TRUE(spliced(kQuestion, "Let me see.", one + ", " + two));
  EXPECT_FALSE(spliced(kQuestion, "Let me look.", one + ", " + two));
  EXPECT_FALSE(spliced(kQuestion, "Let me see.", two + ", " + one));
  EXPECT_FALSE(spliced(kQuestion, "Let me see.", one));
  EXPECT_FALSE(spliced(kQuestion, "Let me see.", one + ", " + call(R"({"deep": "1"})")));
  EXPECT_FALSE(spliced(kQuestion, "Let me see.", one + ", " + call(R"({"deep": 2})")));
  EXPECT_FALSE(spliced(R"({"role": "user", "content": "What is in a.txt?"})", "Let me see.", one + ", " + two));
  Generation stopped = said;
  stopped.finish = FinishReason::kStopString;
  stopped.text = "Let me see";
  memory_.remember(*model_, first.ids, stopped, nullptr);
  EXPECT_FALSE(spliced(kQuestion, "Let me see", one));
}

// A finished turn loses its reasoning when the user speaks again; until then, and with thinking off, it is kept.
TEST_F(AnswerMemoryTest, FollowsTheTemplateWhereReasoningIsDropped) {
  const ChatPrompt first = encode(conversation(kQuestion));
  const Generation said = says("I know.\n</think>\n\nNothing.");
  memory_.remember(*model_, first.ids, said, nullptr);
  const std::string next =
      kQuestion + R"(, {"role": "assistant", "content": "Nothing."}, {"role": "user", "content": "Sure?"})";
  const ChatPrompt dropped = encode(conversation(next));
  EXPECT_EQ(text(dropped.ids).find("I know."), std::string::npos);
  EXPECT_EQ(static_cast<int>(shared(path(first, said), dropped.ids)), first.boundaries.back()) << "where a snapshot is";
  const ChatPrompt kept = encode(conversation(next, true, R"(, "preserve_thinking": true)"));
  EXPECT_EQ(shared(path(first, said), kept.ids), path(first, said).size());

  const ChatPrompt quick = encode(conversation(kQuestion, false));
  EXPECT_FALSE(quick.in_reasoning);
  const Generation at_once = says("Nothing.");
  memory_.remember(*model_, quick.ids, at_once, nullptr);
  EXPECT_EQ(shared(path(quick, at_once), encode(conversation(next, false)).ids), path(quick, at_once).size());
}

TEST_F(AnswerMemoryTest, Boundaries) {
  const ChatPrompt p =
      encode(conversation(kQuestion + R"(, {"role": "assistant", "content": "A"}, {"role": "user", "content": "B"})"));
  std::vector<std::string> before;
  for (const int b : p.boundaries) {
    const std::string t = text({p.ids.begin(), p.ids.begin() + b});
    before.push_back(t.substr(t.rfind("<|im_start|>") + 12));
  }
  EXPECT_EQ(before, (std::vector<std::string>{"user\n", "assistant\n", "user\n", "assistant\n"}));
}

TEST_F(AnswerMemoryTest, IsBounded) {
  const ChatPrompt first = encode(conversation(kQuestion));
  memory_.remember(*model_, first.ids, says("x\n</think>\n\nFirst."), nullptr);
  for (int i = 0; i < 1024; ++i) {
    memory_.remember(*model_, first.ids, says("x\n</think>\n\n" + std::to_string(i)), nullptr);
  }
  const auto recalled = [&](const char* content) {
    ChatMessage m = text_message(ChatRole::kAssistant, content);
    return memory_.recall(std::span(first.ids).first(first.boundaries.back()), m) != nullptr;
  };
  EXPECT_FALSE(recalled("First."));
  EXPECT_TRUE(recalled("0"));
  EXPECT_TRUE(recalled("1023"));
}

}  // namespace
}  // namespace calla
