// Logits and greedy continuations against transformers (f32), on small random checkpoints of both forms;
// tools/make_goldens.py made them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>

#include "engine/runner.h"
#include "formats/safetensors.h"
#include "tests/engine/backends.h"

namespace calla {
namespace {

struct Case {
  const char* form;
  RunnerOptions::Backend backend;
};
std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.form + backend_name(info.param.backend);
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
    const std::string dir = std::string(CALLA_SOURCE_DIR "/tests/goldens/") + GetParam().form;
    auto file = SafetensorsFile::open(dir + "/reference.safetensors");
    ASSERT_TRUE(file) << file.error().message;
    ids_ = values<int32_t>(*file, "ids");
    logits_ = values<float>(*file, "logits");
    last_ = values<float>(*file, "logits_300");
    greedy_ = values<int32_t>(*file, "greedy");
    RunnerOptions options;
    options.backend = GetParam().backend;
    options.context = 1024;
    auto runner = open_runner(dir, options);
    ASSERT_TRUE(runner) << runner.error().message;
    runner_ = std::move(*runner);
    vocab_ = runner_->config().vocab;
  }

  bool reference() const { return GetParam().backend == RunnerOptions::Backend::kReference; }

  std::vector<float> run(std::span<const int32_t> ids, Step::Logits which) {
    auto s = *runner_->start();
    std::vector<float> logits;
    const Step step{s.get(), ids, which};
    EXPECT_TRUE(runner_->forward({&step, 1}, logits));
    return logits;
  }

  // Compares rows of logits; the bars are those that every backend has to meet: 2e-3 for any logit of the reference, a
  // relative L2 error of 2e-2 for each row of the others.
  void compare(std::span<const float> got, std::span<const float> want, const std::string& what) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t row = 0; row * vocab_ < want.size(); ++row) {
      double largest = 0, error = 0, norm = 0;
      for (size_t i = row * vocab_; i < (row + 1) * vocab_; ++i) {
        const double d = std::abs(double{got[i]} - want[i]);
        largest = std::max(largest, d);
        error += d * d;
        norm += double{want[i]} * want[i];
      }
      worst_ = std::max(worst_, std::sqrt(error / norm));
      if (reference()) {
        EXPECT_LE(largest, 2e-3) << what << ", row " << row;
      } else {
        EXPECT_LE(std::sqrt(error / norm), 2e-2) << what << ", row " << row;
      }
    }
  }

  std::vector<int32_t> ids_, greedy_;
  std::vector<float> logits_, last_;
  std::unique_ptr<Runner> runner_;
  size_t vocab_ = 0;
  double worst_ = 0;
};

// Logits at a position depend on nothing after it, so one set of rows serves every length.
TEST_P(LogitsTest, EveryPositionOfEveryLength) {
  for (const size_t n : {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129}) {
    compare(run(std::span(ids_).first(n), Step::Logits::kAll), std::span(logits_).first(n * vocab_),
            "length " + std::to_string(n));
  }
  const auto all = run(ids_, Step::Logits::kAll);
  compare(std::span(all).last(vocab_), last_, "length 300");
  std::printf("worst relative L2 error of a row: %.2e\n", worst_);
}

// Golden tokens are fed, so that one near tie does not decide the rest. Ours may prefer another token only by less than
// its error.
TEST_P(LogitsTest, GreedyContinuation) {
  auto s = *runner_->start();
  std::vector<int32_t> next(ids_.begin(), ids_.begin() + 20);
  int same = 0;
  for (const int32_t golden : greedy_) {
    std::vector<float> logits;
    const Step step{s.get(), next, Step::Logits::kLast};
    ASSERT_TRUE(runner_->forward({&step, 1}, logits));
    const auto top = std::max_element(logits.begin(), logits.end());
    EXPECT_LE(*top - logits[golden], reference() ? 4e-3 : 4e-2) << "golden token " << golden;
    if (top - logits.begin() == golden) ++same;
    next = {golden};
  }
  EXPECT_GE(same, static_cast<int>(greedy_.size()) - 1);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto backend : backends()) {
    all.push_back({"rand-mlx4", backend});
    if (backend != RunnerOptions::Backend::kCuda) all.push_back({"rand-hf", backend});  // the GPU reads 4 bits
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Goldens, LogitsTest, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace calla
