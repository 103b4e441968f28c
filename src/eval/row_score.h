#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace calla {

// What the logits after one token of a text say. Logarithms are natural.
struct RowScore {
  double nll = 0;  // −log p(the token that really follows)
  // Against the logits of a reference at the same place; all 0 without one.
  double reference_nll = 0;
  double kl = 0;    // Σ q log(q/p) over the vocabulary, q the reference's probabilities; nats, ≥ 0
  double top1 = 0;  // 1: both find the same token likeliest
  double top8 = 0;  // share of the reference's eight likeliest tokens that are among our eight
};

// Scores one row of logits; `reference` is empty or as long, `next` inside the vocabulary. Of equal logits the lower id
// counts as likelier. Errors: a logit that is not a finite number.
Result<RowScore> score_row(std::span<const float> logits, std::span<const float> reference, int32_t next);

}  // namespace calla
