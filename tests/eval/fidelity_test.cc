// The bar that every fast path has to meet: on Bud, a mean KL divergence from the f64 reference of at most 1e-3, and
// the same likeliest token at 99 % of the positions; in long passes, in short ones, token by token, and where one
// follows the other.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "eval/scoring.h"
#include "eval/summary.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

constexpr double kMostKl = 1e-3, kLeastTop1 = 0.99;
constexpr int kContext = 4096;
constexpr size_t kAnswer = 160;  // tokens of an answer, at most

std::unique_ptr<Runner> open_bud(RunnerOptions::Backend backend, int chunk) {
  RunnerOptions options;
  options.backend = backend;
  options.context = kContext;
  options.chunk = options.logit_rows = chunk;
  auto runner = open_runner(CALLA_SOURCE_DIR "/models/bud", options);
  EXPECT_TRUE(runner) << runner.error().message;
  return std::move(*runner);
}

std::vector<float> feed(Runner& runner, Sequence& sequence, std::span<const int32_t> ids, Step::Logits which) {
  std::vector<float> logits;
  const Step step{&sequence, ids, which};
  const auto done = runner.forward({&step, 1}, logits);
  EXPECT_TRUE(done) << done.error().message;
  return logits;
}

// Prompts (the golden ones, and more stories), each with the answer that Bud gives greedily, one after the other.
std::vector<int32_t> prompts_and_answers() {
  const auto goldens = nlohmann::json::parse(*read_file(CALLA_SOURCE_DIR "/tests/goldens/bud_greedy.json"));
  const auto tokenizer = Tokenizer::load(CALLA_SOURCE_DIR "/models/bud");
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  std::vector<std::string> prompts;
  for (const auto& run : goldens["runs"]) prompts.push_back(run["text"]);
  for (const char* start : {"a bird named Tim lost his hat", "two frogs built a boat", "an old bear met a girl",
                            "Mia had a red kite", "the moon came to the village", "a kind king had a garden"}) {
    prompts.push_back(std::string("<|im_start|>user\nTell me a story that begins: One day, ") + start +
                      ".<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  }
  const auto runner = open_bud(RunnerOptions::Backend::kCpu, 512);
  const auto& stops = runner->config().eos;
  std::vector<int32_t> text;
  for (const std::string& prompt : prompts) {
    const auto sequence = *runner->start();
    std::vector<int32_t> next = tokenizer->encode_official(prompt);
    const size_t most = next.size() + kAnswer;
    for (size_t fed = 0; fed < most && std::ranges::find(stops, next.back()) == stops.end();) {
      text.insert(text.end(), next.begin(), next.end());
      fed += next.size();
      const auto logits = feed(*runner, *sequence, next, Step::Logits::kLast);
      next = {static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin())};
    }
    text.insert(text.end(), next.begin(), next.end());
  }
  return text;
}

// The text, and its logits by the reference, for all tests.
struct Truth {
  std::vector<int32_t> ids = prompts_and_answers();
  std::vector<float> logits;
  int vocab = 0;

  Truth() {
    const auto runner = open_bud(RunnerOptions::Backend::kReference, 512);
    vocab = runner->config().vocab;
    logits = feed(*runner, **runner->start(), ids, Step::Logits::kAll);
  }
  SavedLogits source() const {
    const auto rows = static_cast<int64_t>(ids.size());
    return *SavedLogits::parse({{"ids", {Dtype::kI32, {rows}, std::as_bytes(std::span(ids))}},
                                {"logits", {Dtype::kF32, {rows, vocab}, std::as_bytes(std::span(logits))}}},
                               "truth");
  }
  std::span<const float> row(size_t i) const { return std::span(logits).subspan(i * vocab, vocab); }
};
const Truth& truth() {
  static const Truth truth;
  return truth;
}

void expect_meets_the_bar(const std::vector<RowScore>& scores) {
  const Summary s = summarize(scores, {}, true);
  std::printf("%zu positions: KL %.1e, 99th percentile %.1e, largest %.1e; top-1 %.2f %%, top-8 %.2f %%\n", s.rows,
              s.agreement->kl.value, s.agreement->kl_p99.value, s.agreement->kl_max, 100 * s.agreement->top1.value,
              100 * s.agreement->top8.value);
  EXPECT_LE(s.agreement->kl.value, kMostKl);
  EXPECT_GE(s.agreement->top1.value, kLeastTop1);
}

class FidelityTest : public testing::TestWithParam<int> {};

TEST_P(FidelityTest, PassesOf) {
  const Truth& t = truth();
  ASSERT_GT(t.ids.size(), 1500u);
  RunnerSource model(open_bud(RunnerOptions::Backend::kCpu, GetParam()));
  SavedLogits reference = t.source();
  std::vector<RowScore> scores;
  const Scoring scoring{t.ids, windows(t.ids.size(), t.ids.size(), t.ids.size()), 512, &model, &reference};
  const auto done = score_text(scoring, scores, [] { return Result<void>(); });
  ASSERT_TRUE(done) << done.error().message;
  expect_meets_the_bar(scores);
}

// 1: decoding; 64: the longest pass with two int8 planes everywhere; 512: prompts.
INSTANTIATE_TEST_SUITE_P(Rows, FidelityTest, testing::Values(1, 64, 512));

// A prompt of every length, read in one pass, then one token decoded.
TEST(Fidelity, EverySplit) {
  constexpr size_t kMost = 128;
  const Truth& t = truth();
  const auto runner = open_bud(RunnerOptions::Backend::kCpu, 512);
  std::vector<RowScore> scores;
  for (size_t split = 1; split < kMost; ++split) {
    const auto sequence = *runner->start();
    feed(*runner, *sequence, std::span(t.ids).first(split), Step::Logits::kNone);
    const auto logits = feed(*runner, *sequence, std::span(t.ids).subspan(split, 1), Step::Logits::kLast);
    const auto score = score_row(logits, t.row(split), t.ids[split + 1]);
    ASSERT_TRUE(score);
    EXPECT_LE(score->kl, 0.05) << "split " << split;
    scores.push_back(*score);
  }
  expect_meets_the_bar(scores);
}

}  // namespace
}  // namespace calla
