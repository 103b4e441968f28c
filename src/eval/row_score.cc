#include "eval/row_score.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace calla {
namespace {

constexpr size_t kTop = 8;

struct Row {
  std::span<const float> logits;
  double log_total;                // log Σ exp(logit)
  std::array<int32_t, kTop> best;  // ids of the largest logits, descending
  size_t filled;

  double log_p(size_t id) const { return logits[id] - log_total; }
};

Result<Row> read_row(std::span<const float> logits) {
  Row row{logits, 0, {}, 0};
  for (size_t id = 0; id < logits.size(); ++id) {
    const float v = logits[id];
    if (!std::isfinite(v)) return invalid(fmt::format("the logit of token {} is {}, not a finite number", id, v));
    if (row.filled == kTop && !(v > logits[row.best[kTop - 1]])) continue;
    size_t at = row.filled < kTop ? row.filled++ : kTop - 1;
    for (; at > 0 && v > logits[row.best[at - 1]]; --at) row.best[at] = row.best[at - 1];
    row.best[at] = static_cast<int32_t>(id);
  }
  const double most = logits[row.best[0]];
  double total = 0;
  for (const float v : logits) total += std::exp(v - most);
  row.log_total = most + std::log(total);
  return row;
}

}  // namespace

Result<RowScore> score_row(std::span<const float> logits, std::span<const float> reference, int32_t next) {
  CHECK(next >= 0 && static_cast<size_t>(next) < logits.size(), "a token outside the row of logits");
  CALLA_ASSIGN(const Row ours, read_row(logits));
  RowScore score{.nll = -ours.log_p(next)};
  if (reference.empty()) return score;
  CHECK(reference.size() == logits.size(), "two vocabularies");
  CALLA_ASSIGN(const Row theirs, read_row(reference));
  score.reference_nll = -theirs.log_p(next);
  double kl = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    const double log_q = theirs.log_p(id);
    kl += std::exp(log_q) * (log_q - ours.log_p(id));
  }
  score.kl = std::max(0.0, kl);  // equal rows may give −1e-17
  score.top1 = ours.best[0] == theirs.best[0] ? 1 : 0;
  const auto top = std::span(ours.best).first(ours.filled);
  size_t common = 0;
  for (size_t i = 0; i < theirs.filled; ++i) common += std::ranges::count(top, theirs.best[i]);
  score.top8 = static_cast<double>(common) / static_cast<double>(theirs.filled);
  return score;
}

}  // namespace calla
