// The operations of a runner on a small random checkpoint: every way to reach a position must give the logits of a cold
// run.

#include "engine/runner.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/random.h"
#include "tests/engine/backends.h"

namespace calla {
namespace {
namespace fs = std::filesystem;

const char* const kModel = CALLA_SOURCE_DIR "/tests/goldens/rand-mlx4";

std::vector<int32_t> random_tokens(int count, int vocab, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(vocab));
  return ids;
}

double relative_error(std::span<const float> got, std::span<const float> want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    norm += std::pow(want[i], 2);
  }
  return std::sqrt(error / norm);
}

class RunnerTest : public testing::TestWithParam<RunnerOptions::Backend> {
 protected:
  void SetUp() override { runner_ = open({}); }

  std::unique_ptr<Runner> open(RunnerOptions options) {
    options.backend = GetParam();
    options.threads = 2;
    if (options.context == 4096) options.context = 512;
    if (options.sequences == 1) options.sequences = 8;
    auto runner = open_runner(kModel, options);
    EXPECT_TRUE(runner) << runner.error().message;
    return runner ? std::move(*runner) : nullptr;
  }
  std::unique_ptr<Sequence> start() { return *runner_->start(); }
  std::vector<float> feed(Sequence& s, std::span<const int32_t> tokens, Step::Logits which = Step::Logits::kLast) {
    return feed_with(*runner_, s, tokens, which);
  }
  static std::vector<float> feed_with(Runner& runner, Sequence& s, std::span<const int32_t> tokens,
                                      Step::Logits which = Step::Logits::kLast) {
    std::vector<float> logits;
    const Step step{&s, tokens, which};
    const auto result = runner.forward({&step, 1}, logits);
    EXPECT_TRUE(result) << (result ? "" : result.error().message);
    return logits;
  }
  // Two ways that sum in another order may differ by rounding; on the CPU also by int8 activations that fall on the
  // other side.
  double tolerance() const { return GetParam() == RunnerOptions::Backend::kReference ? 1e-6 : 2e-2; }
  int vocab() const { return runner_->config().vocab; }

  std::unique_ptr<Runner> runner_;
};

TEST_P(RunnerTest, PrefillSplitAtEveryPosition) {
  const auto tokens = random_tokens(70, vocab(), 1);
  auto whole = start();
  const auto want = feed(*whole, tokens);
  for (int split = 1; split < 70; split += split < 8 || split > 60 ? 1 : 7) {
    auto s = start();
    feed(*s, std::span(tokens).first(split), Step::Logits::kNone);
    const auto got = feed(*s, std::span(tokens).subspan(split));
    EXPECT_LT(relative_error(got, want), tolerance()) << "split at " << split;
  }
}

TEST_P(RunnerTest, TokenByTokenEqualsOnePass) {
  const auto tokens = random_tokens(131, vocab(), 2);
  auto whole = start();
  const auto want = feed(*whole, tokens, Step::Logits::kAll);
  auto s = start();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto got = feed(*s, std::span(tokens).subspan(i, 1));
    EXPECT_LT(relative_error(got, std::span(want).subspan(i * vocab(), vocab())), tolerance()) << "position " << i;
  }
}

TEST_P(RunnerTest, ChunksOfAnySize) {
  const auto tokens = random_tokens(150, vocab(), 3);
  auto whole = start();
  const auto want = feed(*whole, tokens);
  for (int chunk : {1, 3, 63, 64, 65, 149, 150}) {
    RunnerOptions options;
    options.chunk = chunk;
    auto runner = open(options);
    auto s = *runner->start();
    EXPECT_LT(relative_error(feed_with(*runner, *s, tokens), want), tolerance()) << "chunk " << chunk;
  }
}

TEST_P(RunnerTest, BatchOfSequencesInAnyOrder) {
  std::vector<std::vector<int32_t>> prompts;
  for (int n : {1, 5, 64, 33}) prompts.push_back(random_tokens(n, vocab(), 100 + n));
  std::vector<std::vector<float>> alone;
  for (const auto& prompt : prompts) {
    auto s = start();
    alone.push_back(feed(*s, prompt));
  }
  std::vector<int> order{0, 1, 2, 3};
  do {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<Step> steps;
    for (int i : order) {
      sequences.push_back(start());
      steps.push_back({sequences.back().get(), prompts[i], Step::Logits::kLast});
    }
    std::vector<float> logits;
    ASSERT_TRUE(runner_->forward(steps, logits));
    for (size_t j = 0; j < order.size(); ++j) {
      EXPECT_LT(relative_error(std::span(logits).subspan(j * vocab(), vocab()), alone[order[j]]), tolerance());
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(RunnerTest, ForkAndRestoreAreExact) {
  const auto tokens = random_tokens(100, vocab(), 4);
  auto s = start();
  feed(*s, std::span(tokens).first(90));
  auto snapshot = *runner_->fork(*s);
  const auto want = feed(*s, std::span(tokens).subspan(90));
  const auto other = random_tokens(30, vocab(), 5);
  ASSERT_TRUE(runner_->restore(*s, *snapshot));
  EXPECT_EQ(s->position(), 90);
  feed(*s, other);  // writes to the page that the snapshot shares
  auto again = *runner_->fork(*snapshot);
  EXPECT_EQ(feed(*again, std::span(tokens).subspan(90)), want);
  ASSERT_TRUE(runner_->restore(*s, *snapshot));
  EXPECT_EQ(feed(*s, std::span(tokens).subspan(90)), want);
  EXPECT_EQ(s->tokens(), tokens);
}

TEST_P(RunnerTest, RollbackByAnyNumber) {
  const auto tokens = random_tokens(80, vocab(), 6);
  for (int count : {0, 1, 2, 15, 16, 17, 63, 64, 79, 80}) {
    auto s = start();
    feed(*s, std::span(tokens).first(20), Step::Logits::kNone);
    ASSERT_TRUE(runner_->mark(*s));
    feed(*s, std::span(tokens).subspan(20, 44), Step::Logits::kNone);
    ASSERT_TRUE(runner_->mark(*s));
    feed(*s, std::span(tokens).subspan(64), Step::Logits::kNone);
    ASSERT_TRUE(runner_->rollback(*s, count)) << count;
    ASSERT_EQ(s->position(), 80 - count);
    auto cold = start();
    feed(*cold, std::span(tokens).first(80 - count), Step::Logits::kNone);
    const auto next = random_tokens(9, vocab(), 7);
    EXPECT_LT(relative_error(feed(*s, next), feed(*cold, next)), tolerance()) << count << " tokens back";
  }
  auto s = start();
  feed(*s, tokens);
  EXPECT_FALSE(runner_->rollback(*s, 81));
  EXPECT_FALSE(runner_->rollback(*s, -1));
}

TEST_P(RunnerTest, RollbackDoesNotTouchAFork) {
  const auto tokens = random_tokens(70, vocab(), 8);
  auto s = start();
  feed(*s, std::span(tokens).first(40));
  ASSERT_TRUE(runner_->mark(*s));
  feed(*s, std::span(tokens).subspan(40));
  auto fork = *runner_->fork(*s);
  const std::vector<int32_t> next{1};
  auto copy = *runner_->fork(*s);
  const auto want = feed(*copy, next);
  ASSERT_TRUE(runner_->rollback(*s, 25));
  feed(*s, random_tokens(20, vocab(), 9));
  EXPECT_EQ(feed(*fork, next), want);
}

TEST_P(RunnerTest, SaveAndLoad) {
  const fs::path path = fs::path(testing::TempDir()) / ("calla_state_" + std::to_string(getpid()));
  const auto tokens = random_tokens(77, vocab(), 10);
  auto s = start();
  feed(*s, tokens);
  ASSERT_TRUE(runner_->save(*s, path));
  const std::vector<int32_t> next{3, 4};
  const auto want = feed(*s, next);
  auto loaded = runner_->load(path);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ((*loaded)->tokens(), tokens);
  EXPECT_EQ(feed(**loaded, next), want);

  auto empty = start();
  ASSERT_TRUE(runner_->save(*empty, path));
  EXPECT_EQ((*runner_->load(path))->position(), 0);

  // A state of the other backend, and a damaged file, are refused.
  RunnerOptions other;
  other.backend = GetParam() == RunnerOptions::Backend::kReference ? RunnerOptions::Backend::kCpu
                                                                   : RunnerOptions::Backend::kReference;
  other.context = 512;
  auto other_runner = *open_runner(kModel, other);
  EXPECT_FALSE(other_runner->load(path));
  ASSERT_TRUE(runner_->save(*s, path));
  fs::resize_file(path, fs::file_size(path) - 1);
  EXPECT_FALSE(runner_->load(path));
  EXPECT_FALSE(runner_->load(path.string() + ".missing"));
  EXPECT_FALSE(runner_->save(*s, "/proc/none/state"));
  fs::remove(path);
}

TEST_P(RunnerTest, RefusedCallsChangeNothing) {
  auto s = start();
  const auto tokens = random_tokens(20, vocab(), 11);
  feed(*s, tokens);
  std::vector<float> logits;
  for (const std::vector<int32_t>& bad :
       {std::vector<int32_t>{1, vocab()}, std::vector<int32_t>{-1}, random_tokens(493, vocab(), 12)}) {
    const Step step{s.get(), bad, Step::Logits::kLast};
    const auto result = runner_->forward({&step, 1}, logits);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Error::Code::kInvalid);
    EXPECT_EQ(s->tokens(), tokens);
  }
  const Step twice[] = {{s.get(), tokens, Step::Logits::kLast}, {s.get(), tokens, Step::Logits::kLast}};
  EXPECT_FALSE(runner_->forward(twice, logits));
  auto other = start();
  feed(*other, tokens);
  const std::vector<int32_t> next{5};
  EXPECT_EQ(feed(*s, next), feed(*other, next));
}

TEST_P(RunnerTest, PagesRunOutWithAnErrorAndComeBack) {
  RunnerOptions options;
  options.context = 128;
  options.sequences = 2;
  auto runner = open(options);
  const auto tokens = random_tokens(128, vocab(), 13);
  std::vector<std::unique_ptr<Sequence>> held;
  Result<void> result;
  std::vector<float> logits;
  for (int i = 0; i < 8 && result; ++i) {
    held.push_back(*runner->start());
    const Step step{held.back().get(), tokens, Step::Logits::kNone};
    result = runner->forward({&step, 1}, logits);
  }
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Error::Code::kMemory);
  EXPECT_EQ(held.back()->position(), 0);
  held.front().reset();
  const Step step{held.back().get(), tokens, Step::Logits::kLast};
  EXPECT_TRUE(runner->forward({&step, 1}, logits));
}

TEST_P(RunnerTest, CancelKeepsWhatRan) {
  RunnerOptions options;
  options.chunk = 16;
  auto runner = open(options);
  auto s = *runner->start();
  const auto tokens = random_tokens(100, vocab(), 14);
  const Step step{s.get(), tokens, Step::Logits::kLast};
  std::vector<float> logits;
  const auto result = runner->forward(
      {&step, 1}, logits, [](void*, int done) { return done < 32; }, nullptr);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Error::Code::kCancelled);
  ASSERT_EQ(s->position(), 32);
  auto cold = *runner->start();
  feed_with(*runner, *cold, std::span(tokens).first(32));
  EXPECT_EQ(feed_with(*runner, *s, std::span(tokens).subspan(32)),
            feed_with(*runner, *cold, std::span(tokens).subspan(32)));
}

TEST_P(RunnerTest, EmptyCallsAreFine) {
  auto s = start();
  std::vector<float> logits{1, 2, 3};
  ASSERT_TRUE(runner_->forward({}, logits));
  EXPECT_TRUE(logits.empty());
  EXPECT_TRUE(feed(*s, {}).empty());
  EXPECT_TRUE(feed(*s, {}, Step::Logits::kAll).empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, RunnerTest, testing::ValuesIn(backends()),
                         [](const testing::TestParamInfo<RunnerOptions::Backend>& backend) {
                           return backend_name(backend.param);
                         });

TEST(Runner, OptionsAreChecked) {
  const auto refused = [](const auto& change) {
    RunnerOptions options;
    options.context = 128;
    change(options);
    return !open_runner(kModel, options);
  };
  EXPECT_FALSE(refused([](RunnerOptions&) {}));
  EXPECT_TRUE(refused([](RunnerOptions& o) { o.context = 0; }));
  EXPECT_TRUE(refused([](RunnerOptions& o) { o.context = 1 << 30; }));
  EXPECT_TRUE(refused([](RunnerOptions& o) { o.chunk = -1; }));
  EXPECT_TRUE(refused([](RunnerOptions& o) { o.logit_rows = 0; }));
  EXPECT_TRUE(refused([](RunnerOptions& o) { o.threads = 65; }));
  EXPECT_TRUE(refused([](RunnerOptions& o) { o.sequences = 0; }));
  EXPECT_TRUE(refused([](RunnerOptions& o) { o.cpu_isa = "z80"; }));
  EXPECT_FALSE(open_runner("/nonexistent", {}));
}

}  // namespace
}  // namespace calla
