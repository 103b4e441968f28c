#include "bench/row.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bf16.h"
#include "base/check.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "model/state.h"

namespace calla {
namespace {

template <class F>
std::vector<double> collect(std::span<const BenchRound> rounds, const F& f) {
  std::vector<double> values;
  for (const BenchRound& r : rounds) values.push_back(f(r));
  return values;
}

double spread(const std::vector<double>& values) {
  const auto [low, high] = std::ranges::minmax(values);
  return (high - low) / median(values);
}

// Joules a token, where every round knows them.
std::optional<double> energy(std::span<const BenchRound> rounds, std::optional<double> BenchRound::*joules,
                             int tokens) {
  for (const BenchRound& r : rounds) {
    if (!(r.*joules)) return std::nullopt;
  }
  return median(collect(rounds, [&](const BenchRound& r) { return *(r.*joules) / tokens; }));
}

}  // namespace

std::string BenchRow::name() const {
  return depth == 0 ? format_count(prompt) : fmt::format("{}+{}", format_count(depth), format_count(prompt));
}

BenchCost cost_of(const Weights& weights, const BenchRow& row) {
  const StateShape state(weights.config);
  // Step i of `steps` reads the keys and values of decode_depth + i positions, i from 1: on average the middle one's.
  const double positions = row.decode_depth() + (row.steps + 1) / 2.0;
  const double position_bytes = static_cast<double>(state.page_size()) / kPage * sizeof(bf16);
  const double recurrent = 2.0 * sizeof(float) * static_cast<double>(state.recurrent_size() + state.window_size());
  BenchCost cost;
  cost.decode_bytes = static_cast<double>(weights.bytes_per_token()) + recurrent + positions * position_bytes;
  cost.prefill_macs = static_cast<double>(weights.macs_per_token()) * row.prompt + double(weights.head.macs());
  return cost;
}

double median(std::vector<double> values) {
  CHECK(!values.empty(), "a median of nothing");
  std::ranges::sort(values);
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

BenchSummary summarise(const BenchRow& row, std::span<const BenchRound> rounds, std::span<const BenchRound> warm_ups,
                       double tolerance) {
  BenchSummary s;
  const auto prefill = collect(rounds, [&](const BenchRound& r) { return row.prompt / r.prefill_seconds; });
  const auto decode = collect(rounds, [&](const BenchRound& r) { return row.steps / r.decode_seconds; });
  s.prefill_rate = median(prefill);
  s.decode_rate = median(decode);
  s.prefill_spread = spread(prefill);
  s.decode_spread = spread(decode);
  s.first_token_seconds = median(collect(rounds, [](const BenchRound& r) { return r.first_token_seconds; }));
  s.prefill_joules = energy(rounds, &BenchRound::prefill_joules, row.prompt);
  s.decode_joules = energy(rounds, &BenchRound::decode_joules, row.steps);

  const auto same = [&](const BenchRound& r) { return r.digest == rounds.front().digest; };
  if (!std::ranges::all_of(rounds, same) || !std::ranges::all_of(warm_ups, same)) {
    s.refused = "rounds gave different tokens";
    return s;
  }
  for (const auto& [what, value] : {std::pair{"prefill", s.prefill_spread}, {"decode", s.decode_spread}}) {
    // Also where a spread is not a number.
    if (value <= tolerance) continue;
    s.refused += fmt::format("{}{} differs by {:.1f} %", s.refused.empty() ? "" : ", ", what, 100 * value);
  }
  return s;
}

std::vector<int32_t> bench_prompt(int vocab, int count) {
  std::vector<int32_t> ids(count);
  for (int i = 0; i < count; ++i) {
    ids[i] = static_cast<int32_t>(static_cast<uint32_t>(i) * 2654435761u % static_cast<uint32_t>(vocab));
  }
  return ids;
}

std::string token_digest(std::span<const int32_t> ids) {
  std::string bytes;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(static_cast<uint32_t>(id) >> shift & 255);
  }
  return sha256_hex(bytes);
}

}  // namespace calla
