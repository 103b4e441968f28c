#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "eval/interval.h"
#include "eval/row_score.h"

namespace calla {

// What the scores of a text come to, each with its 95 % interval (interval.h: means as ratio(), quantiles, shares as
// wilson()).
struct Summary {
  struct Agreement {
    Interval nll, perplexity;  // of the reference
    Interval nll_difference;   // ours − the reference's, paired by position: far narrower than the two
    Interval kl, kl_p99;
    double kl_max = 0;
    Interval top1, top8;
  };
  size_t rows = 0;
  Interval nll, perplexity;  // nats per token; e to that
  std::optional<Interval> bits_per_byte;
  std::optional<Agreement> agreement;
};

// `bytes`: of the token that each row predicts; empty where unknown. REQUIRES: scores is not empty.
Summary summarize(std::span<const RowScore> scores, std::span<const double> bytes, bool with_reference);

}  // namespace calla
