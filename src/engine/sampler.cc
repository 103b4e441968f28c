#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <functional>
#include <random>

#include "base/check.h"

namespace calla {
namespace {

constexpr float kGreedyBelow = 1e-5f;
constexpr int kBlock = 64;

// e^x for x ≤ 0 with relative error below 1e-9, the same bits on every machine: only IEEE additions and products, no
// libm. Branch-free, so that a loop over the vocabulary vectorises. x = n·ln 2 + r with |r| ≤ ½ ln 2; e^r by its Taylor
// series to r^9.
inline double exp_negative(double x) {
  constexpr double kLog2e = 1.4426950408889634, kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer, which then sits in the low bits
  x = x > -700 ? x : -700;
  const double shifted = x * kLog2e + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double p = 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return p * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

// Σ exp(logits[i] − best), in four interleaved sums: a fixed order that vectorises.
double sum_exp(std::span<const float> logits, float best) {
  double sums[4] = {};
  const size_t whole = logits.size() / 4 * 4;
  for (size_t i = 0; i < whole; i += 4) {
    for (size_t j = 0; j < 4; ++j) sums[j] += exp_negative(double{logits[i + j]} - best);
  }
  for (size_t i = whole; i < logits.size(); ++i) sums[0] += exp_negative(double{logits[i]} - best);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The best of a block, and whether it holds NaN or +inf; eight lanes, so that the loop vectorises.
struct BlockScan {
  float best;
  bool bad;
};
BlockScan scan_block(const float* x, size_t count) {
  float best[8];
  int bad[8] = {};
  std::fill(best, best + 8, -INFINITY);
  const size_t whole = count / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) {
    for (size_t j = 0; j < 8; ++j) {
      best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
      bad[j] |= !(x[i + j] <= FLT_MAX);
    }
  }
  for (size_t i = whole; i < count; ++i) {
    best[0] = x[i] > best[0] ? x[i] : best[0];
    bad[0] |= !(x[i] <= FLT_MAX);
  }
  BlockScan out{best[0], bad[0] != 0};
  for (int j = 1; j < 8; ++j) {
    out.best = best[j] > out.best ? best[j] : out.best;
    out.bad |= bad[j] != 0;
  }
  return out;
}

Result<void> in_range(const char* field, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return invalid(fmt::format("{} is {}, expected {} to {}", field, value, low, high));
}

}  // namespace

Result<void> check_sampling(const SamplingParams& p) {
  CALLA_TRY(in_range("temperature", p.temperature, 0, 100));
  if (p.top_k < 0) return invalid(fmt::format("top_k is {}, expected 0 (no limit) or more", p.top_k));
  if (!(p.top_p > 0 && p.top_p <= 1)) return invalid(fmt::format("top_p is {}, expected above 0, at most 1", p.top_p));
  if (!(p.min_p >= 0 && p.min_p < 1)) return invalid(fmt::format("min_p is {}, expected 0 to below 1", p.min_p));
  CALLA_TRY(in_range("presence_penalty", p.presence_penalty, -2, 2));
  CALLA_TRY(in_range("frequency_penalty", p.frequency_penalty, -2, 2));
  CALLA_TRY(in_range("repetition_penalty", p.repetition_penalty, 0.01f, 100));
  for (const auto& [id, bias] : p.bias) {
    if (id < 0) return invalid(fmt::format("logit_bias names token {}", id));
    CALLA_TRY(in_range("logit_bias", bias, -100, 100));
  }
  if (p.logprobs < -1 || p.logprobs > 100) return invalid(fmt::format("logprobs is {}, expected 0 to 100", p.logprobs));
  return {};
}

Sampler::Sampler(const SamplingParams& params, int tokens, std::span<const int32_t> prompt)
    : params_(params),
      tokens_(tokens),
      seed_(params.seed ? *params.seed : (uint64_t{std::random_device{}()} << 32 | std::random_device{}())),
      random_(seed_),
      greedy_(params.temperature < kGreedyBelow),
      penalties_(params.presence_penalty != 0 || params.frequency_penalty != 0 || params.repetition_penalty != 1) {
  CHECK(tokens > 0, "a sampler needs a vocabulary");
  // All that sample() will need, so that it allocates nothing. Pages that are never touched cost nothing.
  block_best_.resize((static_cast<size_t>(tokens_) + kBlock - 1) / kBlock);
  block_order_.reserve(block_best_.size());
  candidates_.reserve(tokens_);
  changed_.reserve((penalties_ ? tokens_ : 0) + params.bias.size());
  if (!penalties_) return;
  count_.resize(tokens_);
  known_.resize(tokens_);
  known_ids_.reserve(tokens_);
  for (const int32_t id : prompt) {
    if (id < 0 || id >= tokens_ || known_[id]) continue;
    known_[id] = true;
    known_ids_.push_back(id);
  }
}

// Penalties and bias, in place. What they overwrite is kept: a copy of the row would cost more than the whole choice.
void Sampler::change(std::span<float> logits) {
  changed_.clear();
  if (penalties_) {
    for (const int32_t id : known_ids_) {
      float& l = logits[id];
      changed_.emplace_back(id, l);
      l = l > 0 ? l / params_.repetition_penalty : l * params_.repetition_penalty;
      if (count_[id] > 0) l -= params_.frequency_penalty * static_cast<float>(count_[id]) + params_.presence_penalty;
    }
  }
  for (const auto& [id, bias] : params_.bias) {
    if (id >= tokens_) continue;
    changed_.emplace_back(id, logits[id]);
    logits[id] += bias;
  }
}

void Sampler::restore(std::span<float> logits) {
  for (auto it = changed_.rbegin(); it != changed_.rend(); ++it) logits[it->first] = it->second;
}

// One pass over the row: the best token, block_best_ for the passes that follow, and the check for NaN.
Result<Sampler::Best> Sampler::scan(std::span<const float> logits) {
  bool bad = false;
  Best best{-INFINITY, -1};
  size_t best_block = 0;
  for (size_t b = 0; b < block_best_.size(); ++b) {
    const size_t first = b * kBlock;
    const BlockScan s = scan_block(logits.data() + first, std::min<size_t>(kBlock, logits.size() - first));
    block_best_[b] = s.best;
    bad |= s.bad;
    if (s.best > best.logit) {
      best.logit = s.best;
      best_block = b;
    }
  }
  if (bad) return invalid("the model's logits hold NaN or infinity: its weights or its state are damaged");
  if (best.logit == -INFINITY) return invalid("every token is excluded: nothing can be chosen");
  const auto begin = logits.begin() + static_cast<ptrdiff_t>(best_block * kBlock);
  best.id = static_cast<int32_t>(std::find(begin, logits.end(), best.logit) - logits.begin());
  return best;
}

// candidates_ ← the k best, best first. The k-th best of the blocks' bests bounds the k-th best of all from below, and
// little else is above it.
void Sampler::select_top(std::span<const float> logits, int k) {
  const auto size = static_cast<size_t>(k);
  float bound = -INFINITY;
  if (size <= block_best_.size()) {
    block_order_ = block_best_;
    std::nth_element(block_order_.begin(), block_order_.begin() + (k - 1), block_order_.end(), std::greater());
    bound = block_order_[size - 1];
  }
  candidates_.clear();
  for (size_t b = 0; b < block_best_.size(); ++b) {
    if (block_best_[b] < bound) continue;
    const size_t end = std::min(logits.size(), (b + 1) * kBlock);
    for (size_t i = b * kBlock; i < end; ++i) {
      if (logits[i] >= bound && logits[i] != -INFINITY) {
        candidates_.push_back({logits[i], static_cast<int32_t>(i), 0});
      }
    }
  }
  const auto top = candidates_.begin() + static_cast<ptrdiff_t>(std::min(size, candidates_.size()));
  std::nth_element(candidates_.begin(), top, candidates_.end(), better);
  candidates_.erase(top, candidates_.end());
  std::sort(candidates_.begin(), candidates_.end(), better);
}

// candidates_ ← a set that holds the nucleus of top_p, best first; returns the weight of the whole vocabulary. A
// histogram of weight over logit shows how far down the nucleus reaches, so that only what lies above is sorted.
double Sampler::select_nucleus(std::span<const float> logits, float best) {
  constexpr int kBins = 1024;
  constexpr double kReach = 48;  // e^-48 · 250,000 tokens < 1e-15: all below fall into the last bin
  const double inverse = 1.0 / params_.temperature;
  const auto bin_of = [&](float l) {
    const double depth = (double{best} - l) * inverse * (kBins / kReach);
    return depth < kBins - 1 ? static_cast<int>(depth) : kBins - 1;
  };
  std::array<double, kBins> mass{};
  for (const float l : logits) mass[bin_of(l)] += l == -INFINITY ? 0 : exp_negative((double{l} - best) * inverse);
  double total = 0;
  for (const double m : mass) total += m;
  int last = 0;
  for (double sum = mass[0]; sum < params_.top_p * total && last < kBins - 1;) sum += mass[++last];
  last = std::min(last + 1, kBins - 1);  // the sums by bin and by token round differently
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] != -INFINITY && bin_of(logits[i]) <= last)
      candidates_.push_back({logits[i], static_cast<int32_t>(i), 0});
  }
  std::sort(candidates_.begin(), candidates_.end(), better);
  return total;
}

// candidates_ ← all that min_p can keep, by id.
void Sampler::select_all(std::span<const float> logits, float best) {
  const double depth = params_.min_p > 0 ? -std::log(double{params_.min_p}) * params_.temperature + 1e-3 : INFINITY;
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] != -INFINITY && double{best} - logits[i] <= depth) {
      candidates_.push_back({logits[i], static_cast<int32_t>(i), 0});
    }
  }
}

int32_t Sampler::draw(std::span<const float> logits, float best) {
  double whole = 0;  // what top_p is a share of; 0: the candidates
  if (params_.top_k > 0 && params_.top_k < tokens_) {
    select_top(logits, params_.top_k);
  } else if (params_.top_p < 1) {
    whole = select_nucleus(logits, best);
  } else {
    select_all(logits, best);
  }
  const double inverse = 1.0 / params_.temperature;
  double total = 0;
  for (Candidate& c : candidates_) total += c.weight = exp_negative((double{c.logit} - best) * inverse);
  if (params_.top_p < 1) {  // the candidates are sorted
    const double target = params_.top_p * (whole > 0 ? whole : total);
    size_t kept = 0;
    total = 0;
    while (kept < candidates_.size() && (kept == 0 || total < target)) total += candidates_[kept++].weight;
    candidates_.resize(kept);
  }
  if (params_.min_p > 0) {  // the best one's weight is 1
    std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < params_.min_p; });
    total = 0;
    for (const Candidate& c : candidates_) total += c.weight;
  }
  double point = random_.uniform() * total;
  for (const Candidate& c : candidates_) {
    point -= c.weight;
    if (point < 0) return c.id;
  }
  return candidates_.back().id;  // rounding left a little of `point`
}

Result<void> Sampler::add_logprobs(std::span<const float> logits, Sampled& out) {
  // Penalties and masks may have turned the order round: scan the row as it was.
  CALLA_ASSIGN(const Best best, scan(logits));
  const double log_sum = double{best.logit} + std::log(sum_exp(logits, best.logit));
  out.logprob = static_cast<float>(logits[out.id] - log_sum);
  if (params_.logprobs == 0) return {};
  select_top(logits, std::min(params_.logprobs, tokens_));
  for (const Candidate& c : candidates_) out.top.push_back({c.id, static_cast<float>(c.logit - log_sum)});
  return {};
}

Result<int32_t> Sampler::choose(std::span<float> logits) {
  change(logits);
  const Result<Best> best = scan(logits);
  int32_t id = -1;
  if (best) id = greedy_ ? best->id : draw(logits, best->logit);
  restore(logits);
  if (!best) return tl::unexpected<Error>(best.error());
  return id;
}

// The choice with what was asked to be known about it.
Result<Sampled> Sampler::count(std::span<const float> logits, int32_t id) {
  Sampled out;
  out.id = id;
  if (params_.logprobs >= 0) CALLA_TRY(add_logprobs(logits, out));
  if (penalties_) {
    ++count_[id];
    if (!known_[id]) {
      known_[id] = true;
      known_ids_.push_back(id);
    }
  }
  return out;
}

Result<Sampled> Sampler::sample(std::span<float> row, std::span<const uint64_t> allowed) {
  CHECK(row.size() >= static_cast<size_t>(tokens_), "a row of logits is shorter than the vocabulary");
  const std::span<float> logits = row.first(tokens_);
  if (allowed.empty()) {
    CALLA_ASSIGN(const int32_t id, choose(logits));
    return count(logits, id);
  }
  CHECK(allowed.size() * 64 >= logits.size(), "a mask is shorter than the vocabulary");
  masked_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); i += 64) {
    const size_t end = std::min(logits.size(), i + 64);
    const uint64_t word = allowed[i / 64];
    if (word == 0 || word == ~uint64_t{0}) {
      const auto from = logits.begin() + static_cast<ptrdiff_t>(i);
      const auto to = masked_.begin() + static_cast<ptrdiff_t>(i);
      if (word == 0) {
        std::fill_n(to, end - i, -INFINITY);
      } else {
        std::copy_n(from, end - i, to);
      }
      continue;
    }
    for (size_t j = i; j < end; ++j) masked_[j] = word >> (j - i) & 1 ? logits[j] : -INFINITY;
  }
  CALLA_ASSIGN(const int32_t id, choose(masked_));
  return count(logits, id);
}

Result<Sampled> Sampler::force(std::span<float> row, int32_t id) {
  CHECK(id >= 0 && id < tokens_ && row.size() >= static_cast<size_t>(tokens_), "a forced token outside the vocabulary");
  return count(row.first(tokens_), id);
}

}  // namespace calla
