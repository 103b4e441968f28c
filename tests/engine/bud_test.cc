// Bud, a model that was really trained: greedy ids and log-probabilities against transformers on the same weights
// (f32).

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "engine/runner.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

class BudTest : public testing::TestWithParam<RunnerOptions::Backend> {
 protected:
  void SetUp() override {
    const auto text = read_file(CALLA_SOURCE_DIR "/tests/goldens/bud_greedy.json");
    ASSERT_TRUE(text);
    goldens_ = nlohmann::json::parse(*text);
    RunnerOptions options;
    options.backend = GetParam();
    options.context = 1024;
    auto runner = open_runner(CALLA_SOURCE_DIR "/models/bud", options);
    ASSERT_TRUE(runner) << runner.error().message;
    runner_ = std::move(*runner);
  }
  nlohmann::json goldens_;
  std::unique_ptr<Runner> runner_;
};

std::vector<double> log_softmax(std::span<const float> logits) {
  double top = -INFINITY, total = 0;
  for (float l : logits) top = std::max(top, double{l});
  for (float l : logits) total += std::exp(l - top);
  std::vector<double> p(logits.begin(), logits.end());
  for (double& v : p) v -= top + std::log(total);
  return p;
}

// The reference must agree at every token that matters. The CPU stores keys and values in bf16 and may choose another
// eighth expert where two are nearly equal: it must agree on average, and nowhere by much. The reference is slow; a
// dozen steps of each run must do.
TEST_P(BudTest, GreedyIdsAndLogProbabilities) {
  const bool reference = GetParam() == RunnerOptions::Backend::kReference;
  const size_t most_steps = reference ? 12 : 1000;
  const double bound = reference ? 2e-3 : 0.3, mean_bound = reference ? 2e-4 : 5e-3;
  int steps = 0, others = 0;
  double error = 0;
  for (const auto& run : goldens_["runs"]) {
    auto s = *runner_->start();
    auto next = run["prompt"].get<std::vector<int32_t>>();
    for (size_t i = 0; i < std::min(most_steps, run["steps"].size()); ++i, ++steps) {
      const auto& golden = run["steps"][i];
      std::vector<float> logits;
      const Step step{s.get(), next, Step::Logits::kLast};
      ASSERT_TRUE(runner_->forward({&step, 1}, logits));
      const auto p = log_softmax(logits);
      for (const auto& [id, logprob] : golden["top5"].get<std::vector<std::pair<int, double>>>()) {
        // An error in a logit counts by its probability: what hardly ever happens may differ more.
        EXPECT_NEAR(p[id], logprob, bound * (1 + std::abs(logprob))) << run["name"] << " step " << i << " id " << id;
      }
      const auto id = golden["id"].get<int32_t>();
      error += std::abs(p[id] - golden["logprob"].get<double>());
      const auto top = std::max_element(p.begin(), p.end());
      if (top - p.begin() != id) {
        ++others;
        EXPECT_LE(*top - p[id], bound) << run["name"] << " step " << i;
      }
      next = {id};
    }
  }
  EXPECT_GE(steps, 60);
  EXPECT_LE(others, steps / 100);
  EXPECT_LE(error / steps, mean_bound);
  std::printf("%d steps, mean error of a log-probability %.1e, %d greedy ids differ\n", steps, error / steps, others);
}

TEST_P(BudTest, PromptsTokenizeAsTheGoldensSay) {
  const auto tokenizer = Tokenizer::load(CALLA_SOURCE_DIR "/models/bud");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  for (const auto& run : goldens_["runs"]) {
    EXPECT_EQ(tokenizer->encode_official(run["text"].get<std::string>()), run["prompt"].get<std::vector<int32_t>>());
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BudTest,
                         testing::Values(RunnerOptions::Backend::kReference, RunnerOptions::Backend::kCpu),
                         [](const testing::TestParamInfo<RunnerOptions::Backend>& backend) {
                           return backend.param == RunnerOptions::Backend::kCpu ? "Cpu" : "Reference";
                         });

}  // namespace
}  // namespace calla
