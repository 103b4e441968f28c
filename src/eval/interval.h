#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace calla {

// An estimate and its 95 % confidence interval. low and high are NaN where there is too little to tell.
struct Interval {
  double value = 0, low = 0, high = 0;
};

// The method of each, as the commands print it.
inline constexpr std::string_view kMeanMethod = "normal approximation over the means of 64 neighbouring positions";
inline constexpr std::string_view kShareMethod = "Wilson's score interval";
inline constexpr std::string_view kQuantileMethod = "order statistics, normal approximation of their rank";

// Σy / Σx over the positions of a text, Σx > 0; an empty x counts as ones, which gives the mean of y. Neighbours in a
// text are alike, so the spread is taken from the sums of kBlock consecutive positions, not from single ones (Cochran,
// Sampling Techniques, 6.4: the ratio estimator). Needs two blocks for an interval. REQUIRES: y is not empty.
inline constexpr size_t kBlock = 64;
Interval ratio(std::span<const double> y, std::span<const double> x = {});

// A share of n trials, 0 ≤ share ≤ 1, n > 0 (Wilson, J. Am. Stat. Assoc. 22, 1927). It also holds, on the safe side,
// for the mean of n numbers between 0 and 1: their variance is at most that of a coin with the same mean.
Interval wilson(double share, size_t n);

// The p-quantile, 0 < p < 1, of ascending values: the smallest one that at least a share p does not exceed, between the
// values whose ranks are 1.96 standard deviations of a binomial away. REQUIRES: values is not empty.
Interval quantile(std::span<const double> ascending, double p);

}  // namespace calla
