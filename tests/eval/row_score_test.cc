#include "eval/row_score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace calla {
namespace {

std::vector<float> logs(const std::vector<double>& p) {
  std::vector<float> logits;
  for (const double v : p) logits.push_back(static_cast<float>(std::log(v)));
  return logits;
}

TEST(RowScore, AgreesWithProbabilitiesWrittenDown) {
  const std::vector<double> p = {0.1, 0.2, 0.3, 0.4}, q = {0.25, 0.25, 0.4, 0.1};
  std::vector<float> ours = logs(p);
  for (float& l : ours) l += 100;  // a common term means nothing
  const auto score = score_row(ours, logs(q), 1);
  ASSERT_TRUE(score);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += q[i] * std::log(q[i] / p[i]);
  EXPECT_NEAR(score->nll, -std::log(0.2), 1e-5);
  EXPECT_NEAR(score->reference_nll, -std::log(0.25), 1e-6);
  EXPECT_NEAR(score->kl, kl, 1e-5);
  EXPECT_EQ(score->top1, 0);
  EXPECT_EQ(score->top8, 1);  // all four are among both eights
}

TEST(RowScore, WithoutAReferenceOnlyTheTokenCounts) {
  const auto score = score_row(logs({0.5, 0.25, 0.25}), {}, 0);
  ASSERT_TRUE(score);
  EXPECT_NEAR(score->nll, std::log(2), 1e-6);
  EXPECT_EQ(score->kl, 0);
  EXPECT_EQ(score->top8, 0);
}

TEST(RowScore, EqualRowsAgreeWholly) {
  std::vector<float> row(1000);
  for (size_t i = 0; i < row.size(); ++i) row[i] = std::sin(static_cast<float>(i));
  const auto score = score_row(row, row, 7);
  ASSERT_TRUE(score);
  EXPECT_EQ(score->kl, 0);
  EXPECT_EQ(score->top1, 1);
  EXPECT_EQ(score->top8, 1);
}

TEST(RowScore, TheEightLikeliestAreCountedWhateverTheirOrder) {
  std::vector<float> ours(100, 0), theirs(100, 0);
  for (int i = 0; i < 8; ++i) {
    ours[static_cast<size_t>(10 * i)] = static_cast<float>(i + 1);
    theirs[static_cast<size_t>(10 * i)] = static_cast<float>(8 - i);
  }
  EXPECT_EQ(score_row(ours, theirs, 0)->top8, 1);
  EXPECT_EQ(score_row(ours, theirs, 0)->top1, 0);
  ours[70] = -1;  // their last one: out of our eight, which takes id 1 instead
  EXPECT_EQ(score_row(ours, theirs, 0)->top8, 7.0 / 8);
}

TEST(RowScore, OfEqualLogitsTheLowerIdIsLikelier) {
  std::vector<float> flat(20, 1), best_is_0(20, 1);
  best_is_0[0] = 2;
  EXPECT_EQ(score_row(flat, best_is_0, 0)->top1, 1);
  EXPECT_EQ(score_row(flat, best_is_0, 0)->top8, 1);
  std::vector<float> high = flat;
  for (size_t i = 12; i < 20; ++i) high[i] = 2;
  EXPECT_EQ(score_row(flat, high, 0)->top8, 0);
}

TEST(RowScore, LogitsOfAnySizeButNoneThatIsNotANumber) {
  EXPECT_NEAR(score_row(std::vector<float>{1e30f, 0}, {}, 0)->nll, 0, 1e-12);
  EXPECT_NEAR(score_row(std::vector<float>{-3e38f, 3e38f}, std::vector<float>{0, 0}, 1)->nll, 0, 1e-12);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> good = {1, 2}, row = {1, bad};
    EXPECT_FALSE(score_row(row, good, 0));
    const auto other = score_row(good, row, 0);
    ASSERT_FALSE(other);
    EXPECT_NE(other.error().message.find("token 1"), std::string::npos) << other.error().message;
  }
}

}  // namespace
}  // namespace calla
