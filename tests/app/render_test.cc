#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "base/file.h"

namespace calla {
namespace {

struct Output {
  std::string text;  // standard output and error together
  int code;
};

// `calla render` with these options on a request.
Output render(const std::string& options, const std::string& request) {
  const auto file = std::filesystem::path(testing::TempDir()) / "render_test_request.json";
  EXPECT_TRUE(write_file(file, request));
  const std::string command =
      std::string(CALLA_BINARY_DIR) + "/calla render " + options + " " + file.string() + " 2>&1";
  Output out;
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.text.append(buffer, n);
  out.code = WEXITSTATUS(pclose(pipe));
  return out;
}

constexpr const char* kHi = R"({"messages":[{"role":"user","content":"Hi"}]})";

TEST(Render, PrintsThePromptAndNothingElse) {
  const Output out = render("--template qwen3.6", kHi);
  EXPECT_EQ(out.text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(out.code, 0);
}

TEST(Render, FindsTheTemplateInTheFolder) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "render_test_model";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(std::filesystem::path(CALLA_SOURCE_DIR) / "tests/text/data/templates/qwen3.5-small.jinja",
                             folder / "chat_template.jinja", std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(render("--model " + folder.string(), kHi).text.ends_with("<think>\n\n</think>\n\n"));
  EXPECT_TRUE(render("--template qwen3.6 --model " + folder.string(), kHi).text.ends_with("<think>\n"));
  std::filesystem::remove_all(folder);
}

TEST(Render, LinesOfRequestsGiveLinesOfAnswers) {
  const Output out = render("--template qwen3.6 --jsonl", std::string(kHi) + "\n{}\n" + kHi);
  const std::string hi =
      R"({"text":"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n","controls":[[0,12],[19,10],[30,12],[52,7]]})"
      "\n";
  EXPECT_EQ(out.text, hi + R"({"error":"messages is empty: there is nothing to answer"})" + "\n" + hi);
  EXPECT_EQ(out.code, 0);
}

TEST(Render, Errors) {
  const std::string developer = R"({"messages":[{"role":"developer","content":"s"}]})";
  EXPECT_EQ(render("--template qwen3.6", developer).code, 0);
  const Output strict = render("--strict --template qwen3.6", developer);
  EXPECT_EQ(strict.text, "calla: messages[0].role is \"developer\"; expected system, user, assistant or tool\n");
  EXPECT_EQ(strict.code, 1);
  EXPECT_EQ(render("", kHi).text, "calla: say whose chat template to use: --model DIR, or --template qwen3.6\n");
  EXPECT_EQ(render("--ids --template qwen3.6", kHi).text, "calla: --ids needs the model's tokenizer: --model DIR\n");
  EXPECT_EQ(render("--template x", kHi).text,
            "calla: unknown chat template \"x\"; expected one of qwen3.6, qwen3.5, qwen3.5-small\n");
}

}  // namespace
}  // namespace calla
