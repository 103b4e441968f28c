#include "eval/scoring.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "tests/formats/scratch_dir.h"

namespace calla {
namespace {

constexpr int kVocab = 16;

std::vector<int32_t> some_text(size_t n) {
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>((i * 7 + i / 5) % kVocab);
  return ids;
}

// Its logits say which tokens it has seen since the last restart: none alike for two different pasts.
class Remembers final : public LogitSource {
 public:
  explicit Remembers(int vocab = kVocab) : vocab_(vocab) {}
  int vocab() const override { return vocab_; }
  Result<void> restart(size_t position) override {
    past_ = static_cast<double>(position);
    return {};
  }
  Result<std::span<const float>> feed(std::span<const int32_t> tokens, bool wanted) override {
    fed += tokens.size();
    rows_.clear();
    for (const int32_t id : tokens) {
      past_ = 0.9 * past_ + id;
      for (int v = 0; v < vocab_; ++v) rows_.push_back(static_cast<float>(std::sin(past_ * (v + 1))));
    }
    if (!wanted) rows_.clear();
    return rows_;
  }
  size_t fed = 0;

 private:
  int vocab_;
  double past_ = 0;
  std::vector<float> rows_;
};

// The same, one row at a time and each from an empty past.
std::vector<double> plain_nll(const std::vector<int32_t>& ids, size_t window, size_t stride) {
  std::vector<double> nll;
  for (size_t row = 0; row + 1 < ids.size(); ++row) {
    size_t end = std::min(window, ids.size() - 1);
    while (end <= row) end = std::min(end + stride, ids.size() - 1);
    const size_t begin = end > window ? end - window : 0;
    Remembers model;
    (void)model.restart(begin);
    const auto logits = model.feed(std::span(ids).subspan(begin, row + 1 - begin), true);
    double total = 0;
    const auto last = logits->last(kVocab);
    for (const float l : last) total += std::exp(double{l});
    nll.push_back(std::log(total) - last[static_cast<size_t>(ids[row + 1])]);
  }
  return nll;
}

const auto kNever = [] { return Result<void>(); };

TEST(Windows, CoverEveryRowOnceWithEnoughBeforeIt) {
  for (size_t tokens : {0u, 1u, 2u, 3u, 10u, 64u, 65u, 1000u}) {
    for (size_t window : {1u, 2u, 7u, 64u}) {
      for (size_t stride = 1; stride <= window; stride += 3) {
        size_t done = 0;
        for (const Window& w : windows(tokens, window, stride)) {
          EXPECT_EQ(w.first, done);
          EXPECT_LT(w.first, w.end);
          EXPECT_LE(w.begin, w.first);
          EXPECT_LE(w.end - w.begin, window);
          EXPECT_TRUE(w.begin == 0 || w.first - w.begin >= window - stride);
          done = w.end;
        }
        EXPECT_EQ(done, tokens > 0 ? tokens - 1 : 0);
      }
    }
  }
}

TEST(ScoreText, ScoresEachRowInItsWindow) {
  const auto ids = some_text(100);
  for (const auto& [window, stride] : {std::pair{99, 99}, {200, 50}, {16, 16}, {16, 5}, {20, 1}}) {
    for (size_t rows : {1, 3, 64}) {
      Remembers model, reference;
      std::vector<RowScore> scores;
      const Scoring scoring{ids, windows(ids.size(), window, stride), rows, &model, &reference};
      ASSERT_TRUE(score_text(scoring, scores, kNever));
      const auto plain = plain_nll(ids, window, stride);
      ASSERT_EQ(scores.size(), plain.size());
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_NEAR(scores[i].nll, plain[i], 1e-6) << i;
        EXPECT_EQ(scores[i].reference_nll, scores[i].nll);
        EXPECT_EQ(scores[i].top1, 1);
      }
    }
  }
}

// Stopped anywhere and taken up again, it comes to the same numbers and repeats at most one window.
TEST(ScoreText, GoesOnWhereItWasStopped) {
  const auto ids = some_text(100);
  const auto plan = windows(ids.size(), 16, 8);
  Remembers whole;
  std::vector<RowScore> expected;
  ASSERT_TRUE(score_text({ids, plan, 4, &whole}, expected, kNever));
  for (int stop = 1; stop <= 24; ++stop) {
    Remembers before, after;
    std::vector<RowScore> scores;
    int left = stop;
    const auto stopped = score_text({ids, plan, 4, &before}, scores, [&]() -> Result<void> {
      if (--left == 0) return fail(Error::Code::kCancelled, "cancelled");
      return {};
    });
    ASSERT_FALSE(stopped);
    ASSERT_LT(scores.size(), expected.size());
    ASSERT_TRUE(score_text({ids, plan, 4, &after}, scores, kNever));
    ASSERT_EQ(scores.size(), expected.size());
    EXPECT_EQ(std::memcmp(scores.data(), expected.data(), scores.size() * sizeof(RowScore)), 0) << stop;
    EXPECT_LE(before.fed + after.fed, whole.fed + 16) << stop;
  }
}

TEST(ScoreText, RefusesWhatDoesNotFitTogether) {
  Remembers model, other(kVocab + 1);
  std::vector<RowScore> scores;
  auto ids = some_text(10);
  const auto plan = windows(ids.size(), 16, 8);
  const auto two = score_text({ids, plan, 4, &model, &other}, scores, kNever);
  ASSERT_FALSE(two);
  EXPECT_NE(two.error().message.find("16 tokens and the reference 17"), std::string::npos) << two.error().message;
  for (const int32_t bad : {-1, kVocab}) {
    ids.back() = bad;  // never fed, only predicted
    const auto result = score_text({ids, plan, 4, &model}, scores, kNever);
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("token 9"), std::string::npos) << result.error().message;
  }
}

class SavedLogitsTest : public testing::Test {
 protected:
  Result<void> write(std::vector<int64_t> ids_shape, std::vector<int64_t> logits_shape, Dtype dtype = Dtype::kF32) {
    const auto bytes = [](const auto& v) { return std::as_bytes(std::span(v)); };
    size_t ids_size = 1, logits_size = 1;
    for (const auto n : ids_shape) ids_size *= static_cast<size_t>(n);
    for (const auto n : logits_shape) logits_size *= static_cast<size_t>(n);
    ids.resize(ids_size);
    logits.resize(logits_size);
    const TensorData tensors[] = {{"ids", Dtype::kI32, ids_shape, bytes(ids)},
                                  {"logits", dtype, logits_shape, bytes(logits)}};
    return write_safetensors(path, tensors);
  }
  std::string error() {
    const auto saved = SavedLogits::open(path);
    return saved ? "" : saved.error().message;
  }
  ScratchDir dir;
  std::filesystem::path path = dir / "saved.safetensors";
  std::vector<int32_t> ids = {3, 1, 2};
  std::vector<float> logits = {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23};
};

TEST_F(SavedLogitsTest, GiveTheirRowsInOrder) {
  ASSERT_TRUE(write({3}, {3, 4}));
  auto saved = SavedLogits::open(path);
  ASSERT_TRUE(saved) << saved.error().message;
  EXPECT_EQ(saved->ids(), ids);
  EXPECT_EQ(saved->vocab(), 4);
  for (int twice = 0; twice < 2; ++twice) {
    ASSERT_TRUE(saved->restart(0));
    EXPECT_TRUE(saved->feed(std::span(ids).first(1), false)->empty());
    const auto rows = saved->feed(std::span(ids).subspan(1), true);
    EXPECT_EQ(std::vector(rows->begin(), rows->end()), std::vector(logits.begin() + 4, logits.end()));
  }
}

TEST_F(SavedLogitsTest, ErrorsSayWhatIsWrong) {
  const auto expect = [&](const char* what) { EXPECT_NE(error().find(what), std::string::npos) << error(); };
  expect("saved.safetensors");
  ASSERT_TRUE(write({3}, {2, 4}));
  expect("3 ids and 2 rows");
  ASSERT_TRUE(write({3, 1}, {3, 4}));
  expect("ids is I32 with 2 dimensions");
  ASSERT_TRUE(write({3}, {3, 4}, Dtype::kI32));
  expect("logits is I32");
  ASSERT_TRUE(write({3}, {3, 3}));
  expect("token id 3");
  ASSERT_TRUE(write({1}, {1, 4}));
  expect("1 tokens");
  ASSERT_TRUE(write({0}, {0, 4}));
  expect("0 tokens");
  ASSERT_TRUE(write({3}, {3, 0}));
  expect("vocabulary of 0");
  const TensorData only[] = {{"ids", Dtype::kI32, {0}, {}}};
  ASSERT_TRUE(write_safetensors(path, only));
  expect("no tensor \"logits\"");
}

}  // namespace
}  // namespace calla
