#pragma once

// What the benchmark measures and how its figures are judged: plain values, nothing that runs. docs/performance.md has
// the method.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "model/weights.h"
#include "ops/profile.h"

namespace calla {

// A prompt of `prompt` tokens at `depth`, then `steps` greedy steps: after the prompt, or where the depth is not 0, at
// the depth again, so that both speeds belong to one depth.
struct BenchRow {
  int depth = 0;
  int prompt = 0;
  int steps = 64;
  int decode_depth() const { return depth == 0 ? prompt : depth; }
  // Positions that the row needs.
  int positions() const { return depth + (depth == 0 ? prompt + steps : std::max(prompt, steps)); }
  std::string name() const;  // "4,096" or "8,192+512"
  bool operator==(const BenchRow&) const = default;
};

struct BenchRound {
  double prefill_seconds = 0;      // the prompt, with the logits of its last token
  double first_token_seconds = 0;  // the prompt, a new state before it and the choice of a token after it
  double decode_seconds = 0;       // all steps, each with the choice of a token
  std::optional<double> prefill_joules, decode_joules;
  std::string digest;    // of the tokens that came out
  ProcessMemory memory;  // at the end, the state of the sequence still there
  Profile prefill_verbs, decode_verbs;
};

// What a row costs at least: counts of the model's shape, whatever the engine does.
struct BenchCost {
  double decode_bytes = 0;  // a token: weights, recurrent state read and written, keys and values at the mean depth
  double prefill_macs = 0;  // all tokens: products with the weights; attention itself is not counted
};
BenchCost cost_of(const Weights& weights, const BenchRow& row);

struct BenchSummary {
  // Medians, tokens a second and seconds; spreads are (max − min) / median.
  double prefill_rate = 0, decode_rate = 0;
  double prefill_spread = 0, decode_spread = 0;
  double first_token_seconds = 0;
  std::optional<double> prefill_joules, decode_joules;  // a token
  std::string refused;                                  // why the row does not count; "" where it does
};

// `tolerance`: the largest spread that is accepted, 0.03 for 3 %. Every digest, those of the warm-ups too, must be the
// same. REQUIRES: at least one round.
BenchSummary summarise(const BenchRow& row, std::span<const BenchRound> rounds, std::span<const BenchRound> warm_ups,
                       double tolerance);

// The middle value, or the mean of the two in the middle. REQUIRES: not empty.
double median(std::vector<double> values);

// The prompt that every run and machine shares: token i is ((i·2654435761) mod 2^32) mod vocab, for i from 0. `vocab`
// is the model's own, rows of the embedding: ids of control tokens and of padding occur and mean nothing special here.
std::vector<int32_t> bench_prompt(int vocab, int count);

// SHA-256 of ids as little-endian 32-bit integers, in hexadecimal.
std::string token_digest(std::span<const int32_t> ids);

}  // namespace calla
