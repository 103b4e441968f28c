// Speed of the tokenizer: how long loading takes, and MB/s of encoding on one core.
//
//   CALLA_BENCH_TOKENIZER=DIR CALLA_BENCH_TEXT=FILE build/release/tokenizer_bench
//
// DIR holds a tokenizer.json (models/bud if unset); the vocabulary of the large model is what matters. FILE is a text
// in UTF-8. Without it the text is made from the vocabulary: tokens drawn with a frequency of one over their id, as in
// real text.

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/random.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

template <class T>
T or_exit(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "tokenizer_bench: %s\n", result.error().message.c_str());
  std::exit(1);
}

std::filesystem::path folder() {
  const char* dir = std::getenv("CALLA_BENCH_TOKENIZER");
  return dir != nullptr ? dir : "models/bud";
}

const Tokenizer& tokenizer() {
  static const Tokenizer t = or_exit(Tokenizer::load(folder()));
  return t;
}

std::string made_text() {
  Random random(1);
  const double size = tokenizer().size();
  std::string text;
  while (text.size() < (size_t{4} << 20)) {
    const auto id = static_cast<int32_t>(std::exp(random.uniform() * std::log(size)));
    if (!tokenizer().is_control(id)) text += tokenizer().bytes(id);
  }
  return text;
}

const std::string& text() {
  static const std::string t = [] {
    const char* file = std::getenv("CALLA_BENCH_TEXT");
    return file != nullptr ? or_exit(read_file(file)) : made_text();
  }();
  return t;
}

void load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(or_exit(Tokenizer::load(folder())));
}
BENCHMARK(load)->Unit(benchmark::kMillisecond);

void encode(benchmark::State& state) {
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    tokenizer().encode(text(), ids);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text().size()));
  state.counters["bytes/token"] = static_cast<double>(text().size()) / static_cast<double>(ids.size());
}
BENCHMARK(encode)->Unit(benchmark::kMillisecond);

// The first text after loading pays for learning which tokens are whole pieces.
void encode_first(benchmark::State& state) {
  std::vector<int32_t> ids;
  for (auto _ : state) {
    state.PauseTiming();
    const Tokenizer fresh = or_exit(Tokenizer::load(folder()));
    ids.clear();
    state.ResumeTiming();
    fresh.encode(text(), ids);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text().size()));
}
BENCHMARK(encode_first)->Unit(benchmark::kMillisecond);

// One piece of a single letter: the worst case of merging.
void encode_run(benchmark::State& state) {
  const std::string run(static_cast<size_t>(state.range(0)), 'a');
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    tokenizer().encode(run, ids);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(encode_run)->Arg(1 << 10)->Arg(1 << 16)->Arg(1 << 20)->Unit(benchmark::kMillisecond);

void detokenize(benchmark::State& state) {
  std::vector<int32_t> ids;
  tokenizer().encode(text(), ids);
  for (auto _ : state) {
    Detokenizer detokenizer(tokenizer());
    for (const int32_t id : ids) benchmark::DoNotOptimize(detokenizer.push(id));
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * ids.size()));
}
BENCHMARK(detokenize)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace calla
