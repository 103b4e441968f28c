#include "eval/summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <vector>

namespace calla {
namespace {

template <class F>
std::vector<double> column(std::span<const RowScore> scores, F f) {
  std::vector<double> values(scores.size());
  std::ranges::transform(scores, values.begin(), [&](const RowScore& s) { return std::invoke(f, s); });
  return values;
}

Interval exp(const Interval& i) {
  return {std::exp(i.value), std::exp(i.low), std::exp(i.high)};
}

}  // namespace

Summary summarize(std::span<const RowScore> scores, std::span<const double> bytes, bool with_reference) {
  Summary s{.rows = scores.size(), .nll = ratio(column(scores, &RowScore::nll))};
  s.perplexity = exp(s.nll);
  if (std::accumulate(bytes.begin(), bytes.end(), 0.0) > 0) {
    s.bits_per_byte = ratio(column(scores, [](const RowScore& r) { return r.nll / std::numbers::ln2; }), bytes);
  }
  if (!with_reference) return s;
  std::vector<double> kl = column(scores, &RowScore::kl);
  Summary::Agreement a{.nll = ratio(column(scores, &RowScore::reference_nll)), .kl = ratio(kl)};
  a.perplexity = exp(a.nll);
  a.nll_difference = ratio(column(scores, [](const RowScore& r) { return r.nll - r.reference_nll; }));
  std::ranges::sort(kl);
  a.kl_p99 = quantile(kl, 0.99);
  a.kl_max = kl.back();
  a.top1 = wilson(ratio(column(scores, &RowScore::top1)).value, scores.size());
  a.top8 = wilson(ratio(column(scores, &RowScore::top8)).value, scores.size());
  s.agreement = a;
  return s;
}

}  // namespace calla
