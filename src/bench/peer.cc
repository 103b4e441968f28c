#include "bench/peer.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostTokens = 1 << 24;

bool is_rate(double rate) {
  return std::isfinite(rate) && rate > 0;
}

tl::unexpected<Error> wrong(std::string_view what) {
  return invalid(fmt::format("the peer's output: {}", what));
}

// Calls f with each line, without its end.
template <class F>
void for_each_line(std::string_view text, const F& f) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    f(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

// The lines from the first that opens a list on, without those that begin like no JSON that llama-bench prints.
std::string json_lines(std::string_view output) {
  std::string json;
  for_each_line(output, [&](std::string_view line) {
    const size_t start = line.find_first_not_of(" \t\r");
    if (start == std::string_view::npos) return;
    const char first = line[start];
    if (json.empty() ? first != '[' : std::string_view("[]{}\",").find(first) == std::string_view::npos) return;
    json.append(line).push_back('\n');
  });
  return json;
}

// A count of tokens; absent: 0.
Result<int> count_field(const Json& test, const char* key) {
  const auto found = test.find(key);
  if (found == test.end()) return 0;
  if (!found->is_number_integer() || *found < 0 || *found > kMostTokens) {
    return wrong(fmt::format("\"{}\" is not a number of tokens", key));
  }
  return found->get<int>();
}

Result<std::vector<double>> rates_of(const Json& test) {
  std::vector<double> rates;
  if (const auto samples = test.find("samples_ts"); samples != test.end() && samples->is_array() && !samples->empty()) {
    for (const Json& rate : *samples) rates.push_back(rate.is_number() ? rate.get<double>() : 0);
  } else if (const auto mean = test.find("avg_ts"); mean != test.end() && mean->is_number()) {
    rates.push_back(mean->get<double>());
  } else {
    return wrong("a test has neither \"samples_ts\" nor \"avg_ts\"");
  }
  for (const double rate : rates) {
    if (!is_rate(rate)) return wrong("a rate is not a positive number");
  }
  return rates;
}

Result<std::vector<PeerTest>> parse_llama_bench(std::string_view text) {
  const auto json = parse_json(text);
  if (!json) return wrong(json.error().message);
  if (!json->is_array()) return wrong("expected a list of tests");
  std::vector<PeerTest> tests;
  for (const Json& item : *json) {
    if (!item.is_object()) return wrong("a test is not an object");
    CALLA_ASSIGN(const int prompt, count_field(item, "n_prompt"));
    CALLA_ASSIGN(const int answer, count_field(item, "n_gen"));
    CALLA_ASSIGN(const int depth, count_field(item, "n_depth"));
    PeerTest test;
    if (prompt > 0 && answer > 0) {
      // "tg64@pp8192": the answer alone, after a prompt that is not counted.
      const auto name = item.find("test");
      if (name == item.end() || !name->is_string() || !name->get_ref<const std::string&>().starts_with("tg")) continue;
      test = {PeerTest::Kind::kDecode, answer, depth + prompt, {}};
    } else if (prompt > 0) {
      test = {PeerTest::Kind::kPrefill, prompt, depth, {}};
    } else if (answer > 0) {
      test = {PeerTest::Kind::kDecode, answer, depth, {}};
    } else {
      return wrong("a test has neither \"n_prompt\" nor \"n_gen\"");
    }
    CALLA_ASSIGN(test.rates, rates_of(item));
    tests.push_back(std::move(test));
  }
  return tests;
}

// The number after "name=" in a line.
template <class T>
std::optional<T> value_of(std::string_view line, std::string_view name) {
  const size_t at = line.find(name);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view digits = line.substr(at + name.size());
  T value{};
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return end.ec == std::errc() ? std::optional<T>(value) : std::nullopt;
}

Result<std::vector<PeerTest>> parse_mlx(std::string_view text) {
  std::vector<PeerTest> tests;
  std::optional<Error> error;
  for_each_line(text, [&](std::string_view line) {
    if (error) return;
    const auto refuse = [&](std::string_view what) { error = wrong(what).value(); };
    if (line.starts_with("Timing with ")) {
      const auto prompt = value_of<int>(line, "prompt_tokens=");
      const auto answer = value_of<int>(line, "generation_tokens=");
      const auto batch = value_of<int>(line, "batch_size=");
      if (!prompt || !answer || *prompt < 1 || *answer < 1 || *prompt > kMostTokens || *answer > kMostTokens) {
        return refuse("\"Timing with\" is not followed by prompt_tokens and generation_tokens");
      }
      if (batch && *batch != 1) return refuse("only batch_size=1 can be compared");
      tests.push_back({PeerTest::Kind::kPrefill, *prompt, 0, {}});
      tests.push_back({PeerTest::Kind::kDecode, *answer, *prompt, {}});
    } else if (line.starts_with("Trial ")) {
      const auto prompt = value_of<double>(line, "prompt_tps="), answer = value_of<double>(line, "generation_tps=");
      if (tests.empty()) return refuse("a trial comes before \"Timing with\"");
      if (!prompt || !answer || !is_rate(*prompt) || !is_rate(*answer)) {
        return refuse("a trial has no prompt_tps and generation_tps above 0");
      }
      tests[tests.size() - 2].rates.push_back(*prompt);
      tests.back().rates.push_back(*answer);
    }
  });
  if (error) return tl::unexpected<Error>(*error);
  std::erase_if(tests, [](const PeerTest& t) { return t.rates.empty(); });
  return tests;
}

}  // namespace

Result<std::vector<PeerTest>> parse_peer(std::string_view output) {
  const std::string json = json_lines(output);
  CALLA_ASSIGN(std::vector<PeerTest> tests, json.empty() ? parse_mlx(output) : parse_llama_bench(json));
  if (tests.empty()) {
    return wrong("it holds no measurement of `llama-bench -o json` or `mlx_lm.benchmark`");
  }
  return tests;
}

PeerRates peer_rates(const std::vector<PeerTest>& tests, const BenchRow& row) {
  std::vector<double> prefill, decode;
  for (const PeerTest& t : tests) {
    const bool prompt = t.kind == PeerTest::Kind::kPrefill && t.tokens == row.prompt && t.depth == row.depth;
    const bool answer = t.kind == PeerTest::Kind::kDecode && t.depth == row.decode_depth();
    if (prompt) prefill.insert(prefill.end(), t.rates.begin(), t.rates.end());
    if (answer) decode.insert(decode.end(), t.rates.begin(), t.rates.end());
  }
  return {prefill.empty() ? 0 : median(prefill), decode.empty() ? 0 : median(decode)};
}

}  // namespace calla
