// What choosing one token costs with the whole vocabulary of the large model, on one core.

#include <benchmark/benchmark.h>

#include <vector>

#include "base/random.h"
#include "engine/sampler.h"

namespace calla {
namespace {

constexpr int kTokens = 248077, kVocab = 248320;

// A bell of unlikely tokens and a few that stand out, as in real logits.
const std::vector<float>& logits() {
  static const std::vector<float> row = [] {
    Random random(9);
    std::vector<float> l(kVocab);
    for (float& x : l) x = static_cast<float>(random.normal() * 2.5);
    for (int i = 0; i < 30; ++i) l[random.below(kTokens)] += 12;
    return l;
  }();
  return row;
}

void sample(benchmark::State& state, const SamplingParams& params) {
  Sampler sampler(params, kTokens, {});
  std::vector<float> row = logits();
  for (auto _ : state) benchmark::DoNotOptimize(sampler.sample(row));
}

BENCHMARK_CAPTURE(sample, greedy, SamplingParams{.temperature = 0})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample, top_k_20_top_p_95, SamplingParams{.top_k = 20, .top_p = 0.95f})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample, top_p_95, SamplingParams{.top_p = 0.95f})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample, no_filter, SamplingParams{})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample, logprobs_20, SamplingParams{.top_k = 20, .top_p = 0.95f, .logprobs = 20})
    ->Unit(benchmark::kMillisecond);

// With a grammar's mask: inside a string nearly all tokens are allowed, between values a handful.
void sample_masked(benchmark::State& state, uint64_t word, int words) {
  Sampler sampler({.top_k = 20, .top_p = 0.95f}, kTokens, {});
  std::vector<float> row = logits();
  std::vector<uint64_t> mask((kTokens + 63) / 64);
  for (int i = 0; i < words; ++i) mask[static_cast<size_t>(i) * mask.size() / static_cast<size_t>(words)] = word;
  for (auto _ : state) benchmark::DoNotOptimize(sampler.sample(row, mask));
}
BENCHMARK_CAPTURE(sample_masked, few, 0x10, 5)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sample_masked, most, 0xfffffffffffffeff, (kTokens + 63) / 64)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace calla
