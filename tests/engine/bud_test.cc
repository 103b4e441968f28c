// Bud, a model that was really trained: greedy ids and log-probabilities against transformers on the same weights
// (f32).

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/memory.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "model/state.h"
#include "tests/engine/allocations.h"
#include "tests/engine/backends.h"
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

// From the logits of one token to the logits of the next. Only a step that begins a page of keys and values takes
// memory: its page, and room for the tokens of that page.
TEST(BudDecode, StepsAllocateNothing) {
  RunnerOptions options;
  options.context = 1024;
  const auto runner = open_runner(CALLA_SOURCE_DIR "/models/bud", options);
  ASSERT_TRUE(runner) << runner.error().message;
  const int vocab = (*runner)->config().vocab;
  SamplingParams greedy, nucleus, penalised, everything;
  greedy.temperature = 0;
  nucleus.top_p = 0.9f;
  penalised.top_k = 20;
  penalised.presence_penalty = 1.5f;
  penalised.repetition_penalty = 1.1f;
  penalised.bias = {{5, -3.0f}};
  everything.min_p = 0.001f;
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5};
  for (SamplingParams params : {greedy, nucleus, penalised, everything}) {
    params.seed = 1;
    Sampler sampler(params, vocab, prompt);
    const auto sequence = *(*runner)->start();
    std::vector<float> logits;
    const Step read{sequence.get(), prompt, Step::Logits::kLast};
    ASSERT_TRUE((*runner)->forward({&read, 1}, logits));
    for (int i = 0; i < 2 * kPage; ++i) {
      const bool begins_a_page = sequence->position() % kPage == 0;
      const uint64_t before = allocations();
      const auto token = sampler.sample(logits);
      ASSERT_TRUE(token);
      const Step step{sequence.get(), {&token->id, 1}, Step::Logits::kLast};
      ASSERT_TRUE((*runner)->forward({&step, 1}, logits));
      if (!begins_a_page) {
        EXPECT_EQ(allocations(), before) << "at position " << sequence->position();
      }
    }
  }
}

#ifndef __SANITIZE_ADDRESS__  // which has memory of its own for each of ours
// In a process of its own, so that nothing freed by other tests is used again.
TEST(BudMemoryDeathTest, ThePlanIsWhatIsTaken) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto measure = [] {
    RunnerOptions options;
    options.context = 2048;
    const auto plan = plan_memory(CALLA_SOURCE_DIR "/models/bud", options);
    const uint64_t before = process_memory().anonymous;
    const auto runner = open_runner(CALLA_SOURCE_DIR "/models/bud", options);
    if (!plan || !runner) std::_Exit(2);
    const auto sequence = *(*runner)->start();
    const std::vector<int32_t> full(options.context, 1);
    const Step step{sequence.get(), full, Step::Logits::kLast};
    std::vector<float> logits;
    if (!(*runner)->forward({&step, 1}, logits)) std::_Exit(3);
    const double taken = static_cast<double>(process_memory().anonymous - before);
    const auto planned = static_cast<double>(plan->anonymous());
    std::fprintf(stderr, "planned %.2f MB, took %.2f MB", planned / 1e6, taken / 1e6);
    // One page of the pool is spare, and small things are not planned.
    std::_Exit(std::abs(taken - planned) <= 0.02 * planned ? 0 : 1);
  };
  EXPECT_EXIT(measure(), testing::ExitedWithCode(0), "");
}
#endif

INSTANTIATE_TEST_SUITE_P(Backends, BudTest, testing::ValuesIn(backends()),
                         [](const testing::TestParamInfo<RunnerOptions::Backend>& backend) {
                           return backend_name(backend.param);
                         });

}  // namespace
}  // namespace calla
