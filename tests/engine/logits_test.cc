// Logits and greedy continuations against transformers (f32), on small random checkpoints of both forms; tools/make_goldens.py made them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>

#include "engine/runner.h"
#include "formats/safetensors.h"

namespace calla {
namespace {

struct Case {
  const char* form;
  RunnerOptions::Backend backend;
};
std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = std::string(info.param.form) + (info.param.backend == RunnerOptions::Backend::kCpu ? "Cpu" : "Reference");
  std::erase(name, '-');
  return name;
}

template <class T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const TensorView& t = file.tensors().at(name);
  std::vector<T> v(t.data.size() / sizeof(T));
  std::memcpy(v.data(), t.data.data(), t.data.size());
  return v;
}

class LogitsTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string base = std::string(CALLA_SOURCE_DIR "/tests/goldens/") + GetParam().form;
    auto file = SafetensorsFile::open(base + ".ref.safetensors");
    ASSERT_TRUE(file) << file.error().message;
    file_ = std::move(*file);
    RunnerOptions options;
    options.backend = GetParam().backend;
    options.context = 1024;
    options.sequences = 2;
    auto runner = open_runner(base, options);
    ASSERT_TRUE(runner) << runner.error().message;
    runner_ = std::move(*runner);
  }

  std::vector<float> run(std::span<const int32_t> ids, Step::Logits which) {
    auto s = *runner_->start();
    std::vector<float> logits;
    const Step step{s.get(), ids, which};
    EXPECT_TRUE(runner_->forward({&step, 1}, logits));
    return logits;
  }

  // Largest |difference| and relative L2 error of one row.
  static std::pair<double, double> errors(std::span<const float> got, std::span<const float> want) {
    double largest = 0, error = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double d = std::abs(double{got[i]} - want[i]);
      largest = std::max(largest, d);
      error += d * d;
      norm += double{want[i]} * want[i];
    }
    return {largest, std::sqrt(error / norm)};
  }

  SafetensorsFile file_;
  std::unique_ptr<Runner> runner_;
};

TEST_P(LogitsTest, EveryPositionOfEveryLength) {
  const size_t vocab = runner_->config().vocab;
  double worst_absolute = 0, worst_relative = 0;
  int compared = 0;
  for (const auto& [name, tensor] : file_.tensors()) {
    if (!name.starts_with("logits.")) continue;
    const auto ids = values<int32_t>(file_, "ids." + name.substr(7));
    const auto want = values<float>(file_, name);
    const size_t rows = want.size() / vocab;
    const auto got = run(ids, rows == ids.size() ? Step::Logits::kAll : Step::Logits::kLast);
    ASSERT_EQ(got.size(), want.size());
    for (size_t r = 0; r < rows; ++r, ++compared) {
      const auto [absolute, relative] = errors(std::span(got).subspan(r * vocab, vocab), std::span(want).subspan(r * vocab, vocab));
      worst_absolute = std::max(worst_absolute, absolute);
      worst_relative = std::max(worst_relative, relative);
    }
  }
  EXPECT_GE(compared, 300);
  if (GetParam().backend == RunnerOptions::Backend::kReference) EXPECT_LE(worst_absolute, 2e-3);
  EXPECT_LE(worst_relative, 2e-2);
  RecordProperty("worst_absolute", std::to_string(worst_absolute));
  RecordProperty("worst_relative", std::to_string(worst_relative));
  std::printf("%d positions, worst |error| %.2e, worst relative L2 error %.2e\n", compared, worst_absolute, worst_relative);
}

// The greedy continuation must be the same wherever the reference's margin exceeds the error; the golden token is fed, so that one near
// tie does not decide the rest.
TEST_P(LogitsTest, GreedyContinuation) {
  const size_t vocab = runner_->config().vocab;
  int compared = 0, near_ties = 0;
  for (const auto& [name, tensor] : file_.tensors()) {
    if (!name.starts_with("greedy.")) continue;
    const auto prompt = values<int32_t>(file_, "ids." + name.substr(7));
    const auto greedy = values<int32_t>(file_, name);
    const auto margin = values<float>(file_, "margin." + name.substr(7));
    auto s = *runner_->start();
    std::vector<int32_t> next = prompt;
    for (size_t i = 0; i < greedy.size(); ++i) {
      std::vector<float> logits;
      const Step step{s.get(), next, Step::Logits::kLast};
      ASSERT_TRUE(runner_->forward({&step, 1}, logits));
      const auto top = std::max_element(logits.begin(), logits.end());
      const float behind = *top - logits[greedy[i]];  // how far ours puts the golden token behind its own first
      const double spread = std::sqrt(std::inner_product(logits.begin(), logits.end(), logits.begin(), 0.0) / double(vocab));
      const double error = GetParam().backend == RunnerOptions::Backend::kReference ? 4e-3 : 4e-2 * spread * 3;
      if (margin[i] > error) {
        EXPECT_EQ(top - logits.begin(), greedy[i]) << name << " step " << i << ", margin " << margin[i];
        ++compared;
      } else {
        EXPECT_LE(behind, error) << name << " step " << i;
        ++near_ties;
      }
      next = {greedy[i]};
    }
  }
  EXPECT_GT(compared, near_ties);
}

INSTANTIATE_TEST_SUITE_P(Goldens, LogitsTest,
                         testing::Values(Case{"rand-hf", RunnerOptions::Backend::kReference},
                                         Case{"rand-mlx4", RunnerOptions::Backend::kReference},
                                         Case{"rand-hf", RunnerOptions::Backend::kCpu},
                                         Case{"rand-mlx4", RunnerOptions::Backend::kCpu}),
                         case_name);

}  // namespace
}  // namespace calla
