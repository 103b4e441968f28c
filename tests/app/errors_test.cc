// Whatever is wrong with the command line, the files or the machine: one clear line, and the right exit code.

#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "tests/app/program.h"

namespace calla {
namespace {

// One line on standard error that begins with "calla: " and names `what`; nothing on standard output.
void expect_error(const Ran& ran, int code, const std::string& what) {
  EXPECT_EQ(ran.code, code) << ran.err;
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err.rfind("calla: ", 0), 0u) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_NE(ran.err.find(what), std::string::npos) << "\"" << what << "\" is not in: " << ran.err;
}

TEST(Errors, UsageIsExitCode2) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "subcommand"},
      {{"fly"}, "fly"},
      {{"run", "--wings", "x"}, "--wings"},
      {{"run", ""}, "empty"},
      {{"run", " \n"}, "empty"},
      {{"run", "--temperature", "-1", "x"}, "temperature"},
      {{"run", "--temperature", "nan", "x"}, "temperature"},
      {{"run", "--temperature", "warm", "x"}, "--temperature"},
      {{"run", "--top-p", "2", "x"}, "top_p"},
      {{"run", "--top-p", "0", "x"}, "top_p"},
      {{"run", "--top-k", "-5", "x"}, "top_k"},
      {{"run", "--min-p", "1", "x"}, "min_p"},
      {{"run", "--presence-penalty", "9", "x"}, "presence_penalty"},
      {{"run", "--repetition-penalty", "0", "x"}, "repetition_penalty"},
      {{"run", "--max-tokens", "-1", "x"}, "max_tokens"},
      {{"run", "--stop", "", "x"}, "stop"},
      {{"run", "--seed", "-", "x"}, "--seed"},
      {{"run", "--context", "0", "x"}, "--context"},
      {{"run", "--threads", "99", "x"}, "--threads"},
      {{"run", "--device", "abacus", "x"}, "--device"},
      {{"run", "--logprobs", "3", "x"}, "--json"},
      {{"run", "--quiet", "--json", "x"}, "--quiet"},
      {{"run", "--raw", "--system", "s", "x"}, "--raw"},
      {{"run", "--file", "a", "x"}, "once"},
      {{"chat", "--top-p", "nan"}, "top_p"},
      {{"chat", "--turbo"}, "--turbo"},
      {{"bench", "--contexts", "0"}, "--contexts"},
      {{"bench", "--contexts", "256,many"}, "--contexts"},
      {{"bench", "--rounds", "1"}, "--rounds"},
      {{"bench", "--tolerance", "-1"}, "--tolerance"},
      {{"bench", "--depth", "512"}, "--prompt"},
      {{"bench", "--prompt", "512"}, "--depth"},
      {{"bench", "--depth", "5", "--prompt", "5", "--svg", "x.svg"}, "--svg"},
      {{"bench", "--profile", "--device", "reference"}, "--profile"},
      {{"eval"}, "subcommand"},
      {{"eval", "logits", "--out", "x"}, "--ids"},
      {{"eval", "perplexity"}, "one text"},
      {{"eval", "perplexity", "--ids", "a", "b"}, "one text"},
      {{"eval", "perplexity", "--window", "8", "--stride", "9", "a"}, "--stride"},
      {{"eval", "compare", "--reference", "a", "b"}, "one text"},
      {{"eval", "compare", "--reference", "a", "--resume", "b"}, "--resume"},
      {{"eval", "compare", "--against-backend", "abacus", "a"}, "--against-backend"},
  };
  for (const auto& [args, what] : cases) {
    std::string line;
    for (const auto& a : args) line += " " + a;
    SCOPED_TRACE("calla" + line);
    expect_error(run_program(args), 2, what);
  }
}

TEST(Errors, MissingModels) {
  TempDir dir;
  expect_error(run_program({"run", "--model", dir / "none", "x"}), 1, dir / "none");
  expect_error(run_program({"run", "--model", "no-such-owner/no-such-model", "x"}), 1,
               "hf download no-such-owner/no-such-model");
  std::filesystem::create_directories(dir / "empty");
  expect_error(run_program({"chat", "--model", dir / "empty"}), 1, "config.json");
  std::filesystem::create_directories(dir / "other");
  ASSERT_TRUE(write_file(dir / "other/config.json", R"({"model_type": "llama", "hidden_size": 64})"));
  expect_error(run_program({"run", "--model", dir / "other", "x"}), 1, "model_type");
  ASSERT_TRUE(write_file(dir / "other/config.json", "{\"model_type\": "));
  expect_error(run_program({"run", "--model", dir / "other", "x"}), 1, "config.json");
}

TEST(Errors, BadInputFiles) {
  TempDir dir;
  expect_error(run_program({"run", "--file", dir / "none"}), 1, dir / "none");
  expect_error(run_program({"run"}, ""), 1, "empty");
  expect_error(run_program({"run", "--file", "-"}, "  \n"), 1, "empty");
  ASSERT_TRUE(write_file(dir / "r.json", "{\"messages\": [}"));
  expect_error(run_program({"run", "--request", dir / "r.json"}), 1, "r.json");
  ASSERT_TRUE(write_file(dir / "r.json", R"({"messages": [{"role": "user", "content": "x"}], "temperature": "hot"})"));
  expect_error(run_program({"run", "--request", dir / "r.json"}), 1, "temperature");
  ASSERT_TRUE(write_file(dir / "r.json", R"({"messages": [{"role": "pilot", "content": "x"}]})"));
  expect_error(run_program({"run", "--request", dir / "r.json"}), 1, "messages[0]");
  for (const char* ids : {"{}", "[]", "[1, -2]", "[1, 2.5]", "[1, \"x\"]", "[99999999999]", "1 2"}) {
    ASSERT_TRUE(write_file(dir / "ids.json", ids));
    expect_error(run_program({"eval", "logits", "--ids", dir / "ids.json", "--out", dir / "o"}), 1, "ids.json");
  }
  ASSERT_TRUE(write_file(dir / "ids.json", "[7]"));
  expect_error(run_program({"eval", "perplexity", "--ids", dir / "ids.json"}), 1, "at least 2");
  ASSERT_TRUE(write_file(dir / "short.txt", ""));
  expect_error(run_program({"eval", "compare", dir / "short.txt"}), 1, "empty");
  ASSERT_TRUE(write_file(dir / "ids.json", "[1, 2, 99999]"));  // the last one is only predicted
  expect_error(run_program({"eval", "perplexity", "--ids", dir / "ids.json"}), 1, "99999");
  expect_error(run_program({"eval", "compare", "--reference", dir / "ids.json"}), 1, "ids.json");
  expect_error(run_program({"eval", "perplexity", "--ids", dir / "ids.json", "--resume", dir / "short.txt"}), 1,
               "short.txt");
}

TEST(Errors, HelpTeaches) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{{"--help"},
                                                                                    {"run", "--help"},
                                                                                    {"chat", "--help"},
                                                                                    {"doctor", "--help"},
                                                                                    {"bench", "--help"},
                                                                                    {"eval", "logits", "--help"}}) {
    const Ran ran = run_program(args);
    EXPECT_EQ(ran.code, 0);
    EXPECT_EQ(ran.err, "");
    const bool examples = ran.out.find("Examples:") != std::string::npos;
    EXPECT_TRUE(examples || args.size() == 1);
  }
}

}  // namespace
}  // namespace calla
