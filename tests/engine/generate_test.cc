#include "engine/generate.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/engine/fake.h"

namespace calla {
namespace {

using namespace fake;  // NOLINT

GenerateOptions greedy() {
  GenerateOptions o;
  o.sampling.temperature = 0;
  return o;
}

// Generates after the prompt "go" from a model that says `script`.
Generation say(std::vector<int32_t> script, GenerateOptions options, int context = 4096) {
  FakeModel fake = make_model(says(2, std::move(script)), context);
  auto sequence = fake.runner->start();
  auto out = generate(*fake.model, **sequence, bytes("go"), options);
  EXPECT_TRUE(out) << out.error().message;
  return out ? std::move(*out) : Generation{};
}

TEST(Generate, EndsAtAStopToken) {
  for (const int32_t end : {kImEnd, kEndOfText}) {
    std::vector<int32_t> script = bytes("hi there");
    script.push_back(end);
    const Generation g = say(script, greedy());
    EXPECT_EQ(g.text, "hi there");
    EXPECT_EQ(g.finish, FinishReason::kStopToken);
    EXPECT_EQ(g.tokens.size(), 9u);
    EXPECT_EQ(g.prompt_tokens, 2);
  }
  GenerateOptions on = greedy();
  on.ignore_eos = true;
  on.max_tokens = 12;
  const Generation g = say(bytes("hi"), on);
  EXPECT_EQ(g.text, "hi") << "special tokens are not text";
  EXPECT_EQ(g.finish, FinishReason::kLength);
  EXPECT_EQ(g.tokens.size(), 12u);
}

TEST(Generate, StopStringsSpanTokensAndAreNotEmitted) {
  GenerateOptions o = greedy();
  o.stop = {"\nUser:", "zzz"};
  std::string streamed;
  o.on_delta = [&](const Delta& d) {
    streamed += d.text;
    EXPECT_EQ(streamed.find("\nU"), std::string::npos);
    return true;
  };
  const Generation g = say(bytes("fine\nUser: no"), o);
  EXPECT_EQ(g.text, "fine");
  EXPECT_EQ(streamed, "fine");
  EXPECT_EQ(g.finish, FinishReason::kStopString);
  EXPECT_EQ(g.stop, "\nUser:");
  // A partial match at the end belongs to the text.
  o.on_delta = nullptr;
  EXPECT_EQ(say(bytes("fine\nUse"), o).text.substr(0, 8), "fine\nUse");
}

TEST(Generate, LengthAndContext) {
  GenerateOptions o = greedy();
  o.max_tokens = 3;
  Generation g = say(bytes("abcdef"), o);
  EXPECT_EQ(g.text, "abc");
  EXPECT_EQ(g.finish, FinishReason::kLength);
  o.max_tokens = 0;
  g = say(bytes("abcdef"), o, 5);
  EXPECT_EQ(g.text, "abcd") << "the last token need not be read";
  EXPECT_EQ(g.finish, FinishReason::kContext);
  EXPECT_EQ(finish_reason_name(g.finish), "length");

  FakeModel fake = make_model(says(0, {}), 4);
  auto sequence = fake.runner->start();
  const auto too_long = generate(*fake.model, **sequence, bytes("12345"), o);
  ASSERT_FALSE(too_long);
  EXPECT_NE(too_long.error().message.find("5 tokens"), std::string::npos);
  EXPECT_FALSE(generate(*fake.model, **sequence, {}, o));
  EXPECT_TRUE(generate(*fake.model, **sequence, bytes("1234"), o)) << "still usable";
}

TEST(Generate, TextComesInWholeCharacters) {
  GenerateOptions o = greedy();
  std::vector<std::string> pieces;
  int tokens = 0;
  o.on_delta = [&](const Delta& d) {
    if (!d.text.empty()) pieces.emplace_back(d.text);
    tokens += d.token != nullptr;
    EXPECT_TRUE(valid_utf8(d.text));
    return true;
  };
  const Generation g = say(bytes("a€\xf0\x9f\x98"), o);  // the last character is cut off
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "€", "\xef\xbf\xbd"}));
  EXPECT_EQ(tokens, 8);
  EXPECT_EQ(g.text, "a€\xef\xbf\xbd");
}

TEST(Generate, CancelsWhileReadingAndWhileAnswering) {
  FakeModel fake = make_model(says(100, bytes("answer")), 4096, 10);
  auto sequence = fake.runner->start();
  const std::vector<int32_t> prompt(100, 'x');
  GenerateOptions o = greedy();
  std::vector<int> progress;
  o.on_prompt = [&](int done, int total) {
    EXPECT_EQ(total, 100);
    progress.push_back(done);
    return done < 30;
  };
  auto g = generate(*fake.model, **sequence, prompt, o);
  ASSERT_TRUE(g);
  EXPECT_EQ(g->finish, FinishReason::kCancelled);
  EXPECT_EQ(g->text, "");
  EXPECT_EQ(progress, (std::vector<int>{10, 20, 30}));
  // A retry goes on where the cancelled one was.
  o.on_prompt = nullptr;
  int count = 0;
  o.on_delta = [&](const Delta&) { return ++count < 4; };
  g = generate(*fake.model, **sequence, prompt, o);
  ASSERT_TRUE(g);
  EXPECT_EQ(g->reused_tokens, 30);
  EXPECT_EQ(g->finish, FinishReason::kCancelled);
  EXPECT_EQ(g->text, "answ");
  // The flag.
  std::atomic<bool> stop = true;
  o.cancel = &stop;
  g = generate(*fake.model, **sequence, prompt, o);
  ASSERT_TRUE(g);
  EXPECT_EQ(g->finish, FinishReason::kCancelled);
}

TEST(Generate, ReusesThePrefixAndHitsMarks) {
  FakeModel fake = make_model([](const auto& tokens) { return tokens.size() < 120 ? 'y' : kImEnd; });
  auto sequence = fake.runner->start();
  std::vector<int32_t> prompt(100, 'x');
  GenerateOptions o = greedy();
  o.marks = {90};
  auto g = generate(*fake.model, **sequence, prompt, o);
  ASSERT_TRUE(g);
  EXPECT_EQ(g->tokens.size(), 21u);
  EXPECT_EQ(fake.runner->read, 120);

  // The same prompt again: from the mark, and at least one token is read for its logits.
  fake.runner->read = 0;
  g = generate(*fake.model, **sequence, prompt, o);
  EXPECT_EQ(g->reused_tokens, 99);
  EXPECT_EQ(fake.runner->read, 10 + 20);

  // The prompt with the whole answer appended: nothing is read twice.
  std::vector<int32_t> longer = (*sequence)->tokens();
  longer.push_back('z');
  fake.runner->read = 0;
  g = generate(*fake.model, **sequence, longer, o);
  EXPECT_EQ(g->reused_tokens, 120);
  EXPECT_EQ(fake.runner->read, 1);
}

TEST(Generate, OptionsAreChecked) {
  FakeModel fake = make_model(says(2, {}));
  auto sequence = fake.runner->start();
  auto error = [&](auto change) {
    GenerateOptions o;
    change(o);
    const auto g = generate(*fake.model, **sequence, bytes("go"), o);
    return g ? std::string() : g.error().message;
  };
  EXPECT_NE(error([](auto& o) { o.sampling.top_p = 2; }).find("top_p"), std::string::npos);
  EXPECT_NE(error([](auto& o) { o.max_tokens = -1; }).find("max_tokens"), std::string::npos);
  EXPECT_NE(error([](auto& o) { o.stop = {""}; }).find("stop string"), std::string::npos);
  EXPECT_NE(error([](auto& o) { o.stop.resize(17, "x"); }).find("17"), std::string::npos);
}

TEST(Generate, LogprobsComeWithTheTokens) {
  GenerateOptions o = greedy();
  o.sampling.logprobs = 2;
  const Generation g = say(bytes("ab"), o);
  ASSERT_EQ(g.tokens.size(), 3u);
  EXPECT_NEAR(g.tokens[0].logprob, 0, 1e-3);
  ASSERT_EQ(g.tokens[0].top.size(), 2u);
  EXPECT_EQ(g.tokens[0].top[0].id, 'a');
}

}  // namespace
}  // namespace calla
