// What a grammar costs: building the tries, compiling a schema, and a mask for each token of a document, on one core.
//
//   CALLA_BENCH_TOKENIZER=DIR build/release/grammar_bench
//
// DIR holds a tokenizer.json (models/bud if unset); the vocabulary of the large model is what matters.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "text/chat_json.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
T or_exit(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "grammar_bench: %s\n", result.error().message.c_str());
  std::exit(1);
}

const Tokenizer& tokenizer() {
  static const Tokenizer t = [] {
    const char* dir = std::getenv("CALLA_BENCH_TOKENIZER");
    return or_exit(Tokenizer::load(dir != nullptr ? dir : "models/bud"));
  }();
  return t;
}

GrammarVocabulary make_vocabulary() {
  const int32_t stop[] = {*tokenizer().control_id("<|im_end|>")};
  return or_exit(GrammarVocabulary::build(tokenizer(), stop));
}

std::shared_ptr<const GrammarVocabulary> vocabulary() {
  static const auto v = std::make_shared<const GrammarVocabulary>(make_vocabulary());
  return v;
}

const std::string kOrder = R"({"type":"object","properties":{
  "customer":{"type":"object","properties":{"name":{"type":"string"},"email":{"type":"string","format":"email"},
    "address":{"type":["string","null"],"maxLength":200}},"required":["name","email","address"],"additionalProperties":false},
  "items":{"type":"array","minItems":1,"items":{"type":"object","properties":{
    "sku":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{4}$"},"title":{"type":"string","maxLength":80},
    "quantity":{"type":"integer","minimum":1,"maximum":999},"price":{"type":"number","minimum":0},
    "colour":{"enum":["red","green","blue","black"]}},
    "required":["sku","title","quantity","price","colour"],"additionalProperties":false}},
  "note":{"type":"string"},"placed":{"type":"string","format":"date-time"},"gift":{"type":"boolean"}},
  "required":["customer","items","note","placed","gift"],"additionalProperties":false})";

const std::string kOrderText = R"({
  "customer": {
    "name": "Giulia Bianchi",
    "email": "giulia.bianchi@example.com",
    "address": "Via Garibaldi 12, 20121 Milano"
  },
  "items": [
    {
      "sku": "LMP-0042",
      "title": "Reading lamp with a brass arm and a linen shade",
      "quantity": 2,
      "price": 49.9,
      "colour": "black"
    },
    {
      "sku": "CHR-1180",
      "title": "Oak chair, seat of woven cord",
      "quantity": 4,
      "price": 129.0,
      "colour": "green"
    }
  ],
  "note": "Please deliver after 18:00; the bell is broken, so call when you are at the door. Leave nothing outside: it rains.",
  "placed": "2026-03-14T09:26:53Z",
  "gift": false
})";

const std::string kTool = R"({"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"},
  "mode":{"enum":["create","overwrite"]},"lines":{"type":"array","items":{"type":"integer"}}},"required":["path","content"]})";

const std::string kToolText = R"(<tool_call>
<function=write_file>
<parameter=path>
src/base/clock.h
</parameter>
<parameter=content>
#pragma once

#include <chrono>

namespace demo {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace demo
</parameter>
<parameter=mode>
create
</parameter>
</function>
</tool_call>)";

std::shared_ptr<const Grammar> order() {
  return or_exit(Grammar::json_schema(vocabulary(), *parse_json(kOrder)));
}
std::shared_ptr<const Grammar> any_object() {
  return Grammar::json_object(vocabulary());
}
std::shared_ptr<const Grammar> tool_call() {
  const Json schema = *parse_json(kTool);
  const GrammarTool tool{"write_file", &schema};
  return or_exit(Grammar::tool_calls(vocabulary(), {&tool, 1}, true));
}

void build_vocabulary(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(make_vocabulary());
}
BENCHMARK(build_vocabulary)->Unit(benchmark::kMillisecond);

void compile(benchmark::State& state, std::shared_ptr<const Grammar> (*make)()) {
  vocabulary();
  for (auto _ : state) benchmark::DoNotOptimize(make());
}
BENCHMARK_CAPTURE(compile, order, order)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(compile, any_object, any_object)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(compile, tool_call, tool_call)->Unit(benchmark::kMicrosecond);

// A whole answer: a mask and an acceptance for each token. `first`: with a grammar that was just compiled. The counters
// are processor time: of a token on average, and of the slowest mask.
void answer(benchmark::State& state, std::shared_ptr<const Grammar> (*make)(), const std::string& text, bool first) {
  const std::vector<int32_t> ids = tokenizer().encode_official(text);
  std::vector<uint64_t> mask(vocabulary()->words());
  std::clock_t worst = 0;
  auto grammar = make();
  for (auto _ : state) {
    if (first) {
      state.PauseTiming();
      grammar = make();
      state.ResumeTiming();
    }
    GrammarMatcher matcher(grammar);
    for (const int32_t id : ids) {
      const std::clock_t before = std::clock();
      matcher.mask(mask);
      worst = std::max(worst, std::clock() - before);
      if (!matcher.accept(id)) state.SkipWithError("the text is not of the grammar");
    }
  }
  state.counters["s/token"] = benchmark::Counter(
      static_cast<double>(ids.size()), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["worst_us"] = static_cast<double>(worst) / CLOCKS_PER_SEC * 1e6;
  state.counters["tokens"] = static_cast<double>(ids.size());
}
BENCHMARK_CAPTURE(answer, order_first, order, kOrderText, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(answer, order_again, order, kOrderText, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(answer, any_object_first, any_object, kOrderText, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(answer, any_object_again, any_object, kOrderText, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(answer, tool_call_first, tool_call, kToolText, true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(answer, tool_call_again, tool_call, kToolText, false)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace calla
