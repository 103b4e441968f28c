#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/safetensors.h"
#include "tests/app/program.h"
#include "text/utf8.h"

namespace calla {
namespace {

using Json = nlohmann::json;

class RunTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(has_bud()) << "models/bud is not there"; }
  TempDir dir_;
};

TEST_F(RunTest, AnswersAndSaysHowFast) {
  const Ran ran = run_program({"run", "--max-tokens", "20", "--seed", "1", "Once upon a time"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_GT(ran.out.size(), 10u);
  EXPECT_TRUE(valid_utf8(ran.out));
  EXPECT_NE(ran.err.find("tok/s"), std::string::npos);
}

TEST_F(RunTest, SeedsRepeatAndGreedyIsFixed) {
  const std::vector<std::string> seeded = {"run",          "--quiet", "--seed",         "7", "--temperature", "1",
                                           "--max-tokens", "24",      "Tell me a story"};
  EXPECT_EQ(run_program(seeded).out, run_program(seeded).out);
  const std::vector<std::string> greedy = {"run",          "--quiet", "--temperature",  "0",
                                           "--max-tokens", "24",      "Tell me a story"};
  EXPECT_EQ(run_program(greedy).out, run_program(greedy).out);
}

TEST_F(RunTest, QuietIsTheTextAlone) {
  ASSERT_TRUE(write_file(
      dir_ / "r.json",
      R"({"messages": [{"role": "user", "content": "Tell me a story"}], "max_tokens": 12, "temperature": 1})"));
  const Ran quiet = run_program({"run", "--quiet", "--temperature", "0", "--request", dir_ / "r.json"});
  EXPECT_EQ(quiet.code, 0);
  EXPECT_EQ(quiet.err, "");
  const Ran json =
      run_program({"run", "--json", "--temperature", "0", "--request", dir_ / "r.json", "--logprobs", "2"});
  const Json out = Json::parse(json.out);
  EXPECT_EQ(out["text"], quiet.out);
  EXPECT_EQ(out["finish_reason"], "length");
  EXPECT_EQ(out["usage"]["completion_tokens"], 12);
  ASSERT_EQ(out["logprobs"].size(), 12u);
  for (const Json& token : out["logprobs"]) {
    EXPECT_LE(token["logprob"], 0);
    EXPECT_EQ(token["top_logprobs"].size(), 2u);
    EXPECT_EQ(token["top_logprobs"][0]["id"], token["id"]) << "greedy takes the likeliest";
  }
}

TEST_F(RunTest, APipeGetsTheAnswerWithoutTheThinking) {
  const std::vector<std::string> question = {"--thinking", "--temperature", "0", "What is 12 + 30?"};
  auto plain = question, json = question;
  plain.insert(plain.begin(), "run");
  json.insert(json.begin(), {"run", "--json"});
  const Json out = Json::parse(run_program(json).out);
  EXPECT_NE(out["text"].get<std::string>().find("</think>"), std::string::npos);
  EXPECT_EQ(run_program(plain).out, out["content"].get<std::string>() + "\n");
}

TEST_F(RunTest, StdinFileAndStop) {
  const Ran from_stdin = run_program({"run", "--quiet", "--temperature", "0", "--max-tokens", "16"}, "Tell me a story");
  ASSERT_TRUE(write_file(dir_ / "p.txt", "Tell me a story"));
  const Ran from_file =
      run_program({"run", "--quiet", "--temperature", "0", "--max-tokens", "16", "--file", dir_ / "p.txt"});
  EXPECT_EQ(from_stdin.out, from_file.out);
  ASSERT_GT(from_file.out.size(), 8u);
  const std::string stop = from_file.out.substr(4, 3);
  const size_t at = from_file.out.find(stop);
  const Ran stopped =
      run_program({"run", "--quiet", "--temperature", "0", "--max-tokens", "16", "--stop", stop, "Tell me a story"});
  EXPECT_EQ(stopped.out, from_file.out.substr(0, at));
}

TEST_F(RunTest, ContextExceededIsOneLine) {
  std::string words;
  for (int i = 0; i < 200; ++i) words += "word ";
  const Ran ran = run_program({"run", "--context", "64", "--file", "-"}, words);
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("the context holds 64"), std::string::npos) << ran.err;
  const Ran cut = run_program({"run", "--context", "64", "--temperature", "0", "--json", "--raw", "Once upon a time"});
  EXPECT_EQ(Json::parse(cut.out)["finish_reason"] == "length", Json::parse(cut.out)["usage"]["total_tokens"] == 65);
  const Ran huge = run_program({"run", "--context", "1048576", "x"});
  EXPECT_EQ(huge.code, 1);
  EXPECT_NE(huge.err.find("context"), std::string::npos) << huge.err;
}

TEST_F(RunTest, ClosedOutputEndsQuickly) {
  const Ran ran = run_program({"run", "--max-tokens", "100000", "Tell me a story"}, "", true);
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.err.find("standard output was closed"), std::string::npos) << ran.err;
}

TEST_F(RunTest, EvalWritesLogits) {
  ASSERT_TRUE(write_file(dir_ / "ids.json", "[1, 2, 3, 4, 5]"));
  const Ran ran = run_program({"eval", "logits", "--ids", dir_ / "ids.json", "--out", dir_ / "l.safetensors"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto file = SafetensorsFile::open(dir_ / "l.safetensors");
  ASSERT_TRUE(file) << file.error().message;
  const TensorView& logits = file->tensors().at("logits");
  EXPECT_EQ(logits.dtype, Dtype::kF32);
  EXPECT_EQ(logits.shape[0], 5);
  const Ran unwritable =
      run_program({"eval", "logits", "--ids", dir_ / "ids.json", "--out", dir_ / "no/such/l.safetensors"});
  EXPECT_EQ(unwritable.code, 1);
  EXPECT_NE(unwritable.err.find("cannot write"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "no"));
}

TEST_F(RunTest, DoctorFindsEverythingWell) {
  const Ran ran = run_program({"doctor"});
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  for (const char* what : {"GB/s", "self-test", "tensors", "tok/s at", "fits", "ready"}) {
    EXPECT_NE(ran.out.find(what), std::string::npos) << what << "\n" << ran.out;
  }
}

}  // namespace
}  // namespace calla
