#include "api/openai_completions.h"

#include <gtest/gtest.h>

#include "tests/api/testing.h"

namespace calla {
namespace {

using namespace test;  // NOLINT

// Goes on with the letters that follow the last one.
TestApi counting() {
  return TestApi(
      [](const std::vector<int32_t>& tokens) { return tokens.back() < 'z' ? tokens.back() + 1 : fake::kImEnd; });
}

TEST(OpenAiCompletions, StreamAndWholeSayTheSame) {
  TestApi api = counting();
  for (const auto& [prompt, expected] : std::vector<std::pair<std::string, std::string>>{
           {R"("xyv")", "wxyz"}, {"[120,121]", "z"}, {R"(["xu"])", "vwxyz"}, {"[[97,119]]", "xyz"}}) {
    const Json whole = api.ask(ApiKind::kCompletions, R"({"prompt":)" + prompt + "}").json();
    EXPECT_EQ(whole["choices"][0]["text"], expected);
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(whole["object"], "text_completion");
    const auto events = api.ask(ApiKind::kCompletions,
                                R"({"stream":true,"stream_options":{"include_usage":true},"prompt":)" + prompt + "}")
                            .events();
    ASSERT_GE(events.size(), 3u);
    EXPECT_EQ(events.back().data, "[DONE]");
    std::string text;
    for (size_t i = 0; i + 2 < events.size(); ++i) {
      const Json chunk = events[i].json();
      text += chunk["choices"][0]["text"].get<std::string>();
      EXPECT_EQ(chunk["choices"][0]["finish_reason"].is_null(), i + 3 != events.size());
    }
    EXPECT_EQ(text, expected);
    EXPECT_EQ(events[events.size() - 2].json()["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
  }
}

TEST(OpenAiCompletions, SeveralPromptsAndAnswers) {
  TestApi api = counting();
  const Json whole = api.ask(ApiKind::kCompletions, R"({"prompt":["x","w"],"n":2,"echo":true})").json();
  ASSERT_EQ(whole["choices"].size(), 4u);
  EXPECT_EQ(whole["choices"][1]["text"], "xyz");
  EXPECT_EQ(whole["choices"][2]["text"], "wxyz");
  EXPECT_EQ(whole["choices"][3]["index"], 3);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 3 + 3 + 4 + 4);  // with the stop tokens
  std::vector<std::string> texts(4);
  for (const SseEvent& e :
       api.ask(ApiKind::kCompletions, R"({"prompt":["x","w"],"n":2,"echo":true,"stream":true})").events()) {
    if (e.data == "[DONE]") continue;
    const Json chunk = e.json();
    texts[chunk["choices"][0]["index"].get<size_t>()] += chunk["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"xyz", "xyz", "wxyz", "wxyz"}));
}

TEST(OpenAiCompletions, Logprobs) {
  TestApi api = counting();
  const Json logprobs =
      api.ask(ApiKind::kCompletions, R"({"prompt":"w","logprobs":1})").json()["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (Json{"x", "y", "z"}));
  EXPECT_EQ(logprobs["text_offset"], (Json{0, 1, 2}));
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 1u);
  EXPECT_EQ(logprobs["token_logprobs"].size(), 3u);
}

TEST(OpenAiCompletions, LimitIsSixteenUnlessGiven) {
  TestApi api = counting();
  EXPECT_EQ(api.ask(ApiKind::kCompletions, R"({"prompt":"A"})").json()["usage"]["completion_tokens"], 16);
  EXPECT_EQ(api.ask(ApiKind::kCompletions, R"({"prompt":"A","max_tokens":20})").json()["usage"]["completion_tokens"],
            20);
}

TEST(OpenAiCompletions, Refusals) {
  TestApi api = counting();
  for (const auto& [body, param] :
       std::vector<std::pair<std::string, std::string>>{{R"({})", ""},
                                                        {R"({"prompt":5})", "prompt"},
                                                        {R"({"prompt":[]})", "prompt"},
                                                        {R"({"prompt":[-1]})", "prompt[0]"},
                                                        {R"({"prompt":[1,99999]})", "prompt[1]"},
                                                        {R"({"prompt":["a",5]})", "prompt[1]"},
                                                        {R"({"prompt":[[1],["x"]]})", "prompt[1][0]"},
                                                        {R"({"prompt":"x","best_of":3})", "best_of"},
                                                        {R"({"prompt":"x","echo":true,"logprobs":1})", "echo"},
                                                        {R"({"prompt":"x","suffix":"y"})", "suffix"},
                                                        {R"({"prompt":""})", ""}}) {
    const Answered a = api.ask(ApiKind::kCompletions, body);
    EXPECT_EQ(a.status, 400) << body;
    const Json param_json = a.json()["error"]["param"];
    EXPECT_EQ(param_json.is_null() ? "" : param_json.get<std::string>(), param) << a.bytes;
  }
}

}  // namespace
}  // namespace calla
