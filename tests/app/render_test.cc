#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/app/program.h"

namespace calla {
namespace {

Ran render(std::vector<std::string> options, const std::string& request) {
  options.insert(options.begin(), "render");
  return run_program(options, request);
}

constexpr const char* kHi = R"({"messages":[{"role":"user","content":"Hi"}]})";

TEST(Render, PrintsThePromptAndNothingElse) {
  const Ran ran = render({"--template", "qwen3.6"}, kHi);
  EXPECT_EQ(ran.out, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.code, 0);
}

TEST(Render, FindsTheTemplateInTheFolder) {
  const TempDir folder;
  std::filesystem::copy_file(CALLA_SOURCE_DIR "/tests/text/data/templates/qwen3.5-small.jinja",
                             folder / "chat_template.jinja");
  EXPECT_TRUE(render({"--model", folder / ""}, kHi).out.ends_with("<think>\n\n</think>\n\n"));
  EXPECT_TRUE(render({"--model", folder / "", "--template", "qwen3.6"}, kHi).out.ends_with("assistant\n<think>\n"));
}

TEST(Render, LinesOfRequestsGiveLinesOfAnswers) {
  const Ran ran = render({"--template", "qwen3.6", "--jsonl"}, std::string(kHi) + "\n{}\n" + kHi);
  const std::string hi =
      R"({"text":"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n","controls":[[0,12],[19,10],[30,12],[52,7]]})"
      "\n";
  EXPECT_EQ(ran.out, hi + R"({"error":"messages is empty: there is nothing to answer"})" + "\n" + hi);
  EXPECT_EQ(ran.code, 0);
}

TEST(Render, Errors) {
  const std::string developer = R"({"messages":[{"role":"developer","content":"s"}]})";
  EXPECT_EQ(render({"--template", "qwen3.6"}, developer).code, 0);
  const Ran strict = render({"--template", "qwen3.6", "--strict"}, developer);
  EXPECT_EQ(strict.err, "calla: messages[0].role is \"developer\"; expected system, user, assistant or tool\n");
  EXPECT_EQ(strict.out, "");
  EXPECT_EQ(strict.code, 1);
  EXPECT_EQ(render({"--template", "x"}, kHi).code, 2);
  EXPECT_EQ(render({"--model", "/nowhere"}, kHi).code, 1);
}

TEST(Render, BudIsTheDefault) {
  EXPECT_EQ(render({}, kHi).out, render({"--template", "qwen3.6"}, kHi).out);
  EXPECT_EQ(render({"--ids"}, kHi).out, render({"--ids", "--model", CALLA_SOURCE_DIR "/models/bud"}, kHi).out);
}

}  // namespace
}  // namespace calla
