#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/safetensors.h"
#include "tests/app/program.h"

namespace calla {
namespace {

using Json = nlohmann::json;

class EvalTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(has_bud()) << "models/bud is not there";
    std::string text;
    for (int i = 0; i < 6; ++i) text += "Once upon a time, a little fox found a red kite. The fox was happy. ";
    ASSERT_TRUE(write_file(text_, text));
  }
  static Json json(std::vector<std::string> args) {
    args.insert(args.begin(), "eval");
    args.push_back("--json");
    const Ran ran = run_program(args);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return Json::parse(ran.out, nullptr, false);
  }
  TempDir dir_;
  std::string text_ = dir_ / "text.txt";
};

TEST_F(EvalTest, PerplexityOfAText) {
  const Json one = json({"perplexity", text_});
  const double nll = one["nll"]["value"], bits = one["bits_per_byte"]["value"];
  EXPECT_GT(nll, 0);
  EXPECT_NEAR(one["perplexity"]["value"].get<double>(), std::exp(nll), 1e-9);
  EXPECT_LT(one["nll"]["low"].get<double>(), nll);
  // The bytes are those of all tokens but the first, "Once".
  const auto size = static_cast<double>(std::filesystem::file_size(text_)) - 4;
  EXPECT_NEAR(bits, nll * one["positions"].get<double>() / std::log(2) / size, 1e-9);
  // Less past predicts less; and ids, standard input and the printed table say the same.
  const Json small = json({"perplexity", "--window", "16", "--stride", "8", text_});
  EXPECT_GT(small["nll"]["value"].get<double>(), nll);
  ASSERT_TRUE(write_file(dir_ / "ids.json", run_program({"tokenize", text_}).out));
  EXPECT_EQ(json({"perplexity", "--ids", dir_ / "ids.json"}), one);
  const Ran table = run_program({"eval", "perplexity", "-"}, *read_file(text_));
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("perplexity"), std::string::npos);
}

TEST_F(EvalTest, CompareWithTheReferenceDirectlyAndSaved) {
  const Json streamed = json({"compare", text_});
  EXPECT_LT(streamed["kl"]["value"].get<double>(), 1e-3);
  EXPECT_GE(streamed["kl_max"].get<double>(), streamed["kl_p99"]["value"].get<double>());
  EXPECT_GE(streamed["top1"]["value"].get<double>(), 0.9);
  EXPECT_GE(streamed["top8"]["value"].get<double>(), 0.9);
  const std::string saved = dir_ / "ref.safetensors";
  ASSERT_EQ(run_program({"eval", "logits", "--device", "reference", text_, "--out", saved}).code, 0);
  const Json same = json({"compare", "--reference", saved});
  EXPECT_EQ(same["nll"], streamed["nll"]);
  EXPECT_NEAR(same["kl"]["value"].get<double>(), streamed["kl"]["value"].get<double>(), 1e-12);
  // With itself, nothing differs.
  const Json self = json({"compare", "--against", kBud, "--against-device", "cpu", text_});
  EXPECT_EQ(self["kl_max"], 0);
  EXPECT_EQ(self["top1"]["value"], 1);
  EXPECT_EQ(self["nll_difference"]["high"], 0);
}

TEST_F(EvalTest, ResumeTakesUpAndRefusesAnotherRun) {
  const std::string state = dir_ / "state";
  const std::vector<std::string> args = {"eval", "perplexity", "--window", "32", "--stride",
                                         "8",    "--resume",   state,      text_};
  const Ran first = run_program(args);
  ASSERT_EQ(first.code, 0) << first.err;
  // As if it had been killed: only the first rows are there.
  {
    auto file = SafetensorsFile::open(state);
    ASSERT_TRUE(file);
    std::vector<TensorData> tensors;
    for (const auto& [name, t] : file->tensors()) {
      auto shape = t.shape;
      auto data = t.data;
      if (name == "scores") {
        shape[0] = 50;
        data = data.first(50 * 5 * sizeof(double));
      }
      tensors.push_back({name, t.dtype, shape, data});
    }
    ASSERT_TRUE(write_safetensors(state, tensors));
  }
  const Ran second = run_program(args);
  EXPECT_EQ(second.out, first.out);
  EXPECT_NE(second.err.find("50 of "), std::string::npos) << second.err;
  const Ran third = run_program(args);
  EXPECT_EQ(third.out, first.out);

  const auto refused = [&](std::vector<std::string> other, const std::string& what) {
    const Ran ran = run_program(other);
    EXPECT_EQ(ran.code, 1);
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find("the same " + what), std::string::npos) << ran.err;
  };
  auto other = args;
  other[5] = "16";
  refused(other, "options");
  ASSERT_TRUE(write_file(text_, *read_file(text_) + "The end."));
  refused(args, "text");
}

// Killed at any time, a run leaves a whole file or none, and the next one finishes.
TEST_F(EvalTest, ResumeAfterAKill) {
  std::string text;
  for (int i = 0; i < 24; ++i) text += "Once upon a time, a little fox found a red kite. The fox was happy. ";
  ASSERT_TRUE(write_file(text_, text));
  const std::string state = dir_ / "state";
  const std::vector<std::string> args = {"eval",      "perplexity", "--window", "64", "--device",
                                         "reference", "--resume",   state,      text_};
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(1);
    exec_program(args);
  }
  for (int i = 0; i < 600 && !std::filesystem::exists(state); ++i) ::usleep(50'000);
  ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it ended before it was killed";
  const Ran rest = run_program(args);
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.err.find("are there from an earlier run"), std::string::npos) << rest.err;
  EXPECT_EQ(rest.out, run_program({"eval", "perplexity", "--window", "64", "--device", "reference", text_}).out);
}

}  // namespace
}  // namespace calla
