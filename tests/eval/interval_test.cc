#include "eval/interval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace calla {
namespace {

constexpr int kTrials = 1000;

// How often an interval that `draw` makes holds `truth`.
template <class F>
double coverage(double truth, F draw) {
  Random random(1);
  int held = 0;
  for (int t = 0; t < kTrials; ++t) {
    const Interval i = draw(random);
    held += i.low <= truth && truth <= i.high;
  }
  return static_cast<double>(held) / kTrials;
}
// 95 % to within three standard deviations of 1000 trials, and what the normal approximation costs with few blocks.
void expect_about_95(double share) {
  EXPECT_GE(share, 0.92);
  EXPECT_LE(share, 0.975);
}

TEST(Ratio, IsTheRatioOfTheSums) {
  const std::vector<double> y = {1, 2, 6}, x = {2, 1, 1};
  EXPECT_DOUBLE_EQ(ratio(y).value, 3);
  EXPECT_DOUBLE_EQ(ratio(y, x).value, 9.0 / 4);
  EXPECT_TRUE(std::isnan(ratio(y).low) && std::isnan(ratio(y).high));  // one block tells nothing
}

TEST(Ratio, EqualBlocksLeaveNoDoubt) {
  const Interval i = ratio(std::vector<double>(3 * kBlock, 0.5));
  EXPECT_EQ(i.low, 0.5);
  EXPECT_EQ(i.high, 0.5);
}

TEST(Ratio, CoversTheMeanOfIndependentPositions) {
  expect_about_95(coverage(3, [](Random& random) {
    std::vector<double> y(30 * kBlock);
    for (double& v : y) v = 3 + random.normal();
    return ratio(y);
  }));
}

// Neighbours with a correlation of 0.8, as log-probabilities in a text may have: single positions would give intervals
// a third as wide as needed.
TEST(Ratio, CoversTheMeanOfNeighboursThatAreAlike) {
  const double share = coverage(3, [](Random& random) {
    std::vector<double> y(40 * kBlock);
    double noise = random.normal();
    for (double& v : y) {
      noise = 0.8 * noise + 0.6 * random.normal();
      v = 3 + noise;
    }
    return ratio(y);
  });
  EXPECT_GE(share, 0.90);
  EXPECT_LE(share, 0.975);
}

TEST(Ratio, CoversARatioWithAnUnequalDenominator) {
  expect_about_95(coverage(0.5, [](Random& random) {
    std::vector<double> y(30 * kBlock), x(30 * kBlock);
    for (size_t i = 0; i < y.size(); ++i) {
      x[i] = 1 + static_cast<double>(random.below(8));
      y[i] = 0.5 * x[i] + random.normal();
    }
    return ratio(y, x);
  }));
}

// Table I of Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17, 1998,
// method 3.
TEST(Wilson, AgreesWithPublishedIntervals) {
  const struct {
    int hits, trials;
    double low, high;
  } table[] = {{81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0, 0.1611}, {1, 29, 0.0061, 0.1718}};
  for (const auto& row : table) {
    const Interval i = wilson(static_cast<double>(row.hits) / row.trials, row.trials);
    EXPECT_NEAR(i.low, row.low, 5e-5) << row.hits;
    EXPECT_NEAR(i.high, row.high, 5e-5) << row.hits;
  }
  EXPECT_EQ(wilson(1, 20).high, 1);
}

TEST(Quantile, IsTheSmallestValueThatAShareDoesNotExceed) {
  std::vector<double> values(200);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i + 1);
  EXPECT_EQ(quantile(values, 0.99).value, 198);
  EXPECT_EQ(quantile(values, 0.5).value, 100);
  EXPECT_EQ(quantile(std::vector<double>{7}, 0.99).value, 7);
  // 200·0.99·0.01 has a deviation of 1.4: 198 − 2.8 and, beyond the last value, no bound.
  EXPECT_EQ(quantile(values, 0.99).low, 195);
  EXPECT_TRUE(std::isnan(quantile(values, 0.99).high));
}

TEST(Quantile, CoversTheTrueOne) {
  const double share = coverage(0.99, [](Random& random) {
    std::vector<double> values(3000);
    for (double& v : values) v = random.uniform();
    std::ranges::sort(values);
    return quantile(values, 0.99);
  });
  EXPECT_GE(share, 0.93);
  EXPECT_LE(share, 0.985);  // ranks are whole numbers, taken outwards
}

}  // namespace
}  // namespace calla
