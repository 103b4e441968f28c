#include "eval/interval.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace calla {
namespace {

constexpr double kZ = 1.959963984540054;  // P(|N(0, 1)| < kZ) = 0.95
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double sum(std::span<const double> values) {
  double total = 0;
  for (const double v : values) total += v;
  return total;
}

}  // namespace

Interval ratio(std::span<const double> y, std::span<const double> x) {
  CHECK(!y.empty() && (x.empty() || x.size() == y.size()), "a ratio of sums needs values in pairs");
  const auto weight = [&](size_t from, size_t count) {
    return x.empty() ? static_cast<double>(count) : sum(x.subspan(from, count));
  };
  const double total = weight(0, y.size()), r = sum(y) / total;
  const size_t blocks = (y.size() + kBlock - 1) / kBlock;
  if (blocks < 2) return {r, kUnknown, kUnknown};
  double squares = 0;
  for (size_t at = 0; at < y.size(); at += kBlock) {
    const size_t count = std::min(kBlock, y.size() - at);
    const double residual = sum(y.subspan(at, count)) - r * weight(at, count);
    squares += residual * residual;
  }
  const auto b = static_cast<double>(blocks);
  const double half = kZ * std::sqrt(squares * b / (b - 1)) / total;
  return {r, r - half, r + half};
}

Interval wilson(double share, size_t n) {
  CHECK(n > 0 && share >= 0 && share <= 1, "a share needs trials");
  const auto trials = static_cast<double>(n);
  const double shrink = 1 + kZ * kZ / trials;
  const double middle = (share + kZ * kZ / (2 * trials)) / shrink;
  const double half = kZ * std::sqrt(share * (1 - share) / trials + kZ * kZ / (4 * trials * trials)) / shrink;
  return {share, std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

Interval quantile(std::span<const double> ascending, double p) {
  CHECK(!ascending.empty() && p > 0 && p < 1, "a quantile needs values");
  const auto n = static_cast<double>(ascending.size());
  const auto at = [&](double rank) { return ascending[static_cast<size_t>(rank) - 1]; };
  const double rank = std::clamp(std::ceil(p * n), 1.0, n), half = kZ * std::sqrt(n * p * (1 - p));
  const double low = std::floor(p * n - half), high = std::ceil(p * n + half) + 1;
  return {at(rank), low < 1 ? kUnknown : at(low), high > n ? kUnknown : at(high)};
}

}  // namespace calla
