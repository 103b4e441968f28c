#include "bench/peer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace calla {
namespace {

using Kind = PeerTest::Kind;

constexpr const char* kLlamaBench = R"([
  {
    "build_commit": "0123abc",
    "model_filename": "x [1].gguf",
    "n_prompt": 512,
    "n_gen": 0,
    "n_depth": 0,
    "avg_ts": 41.0,
    "samples_ns": [ 1, 2 ],
    "samples_ts": [ 40.0, 42.5 ]
  },
=== 12 tensors repacked
  {
    "n_prompt": 512,
    "n_gen": 0,
    "n_depth": 8192,
    "avg_ts": 28.5
  },
  {
    "n_prompt": 0,
    "n_gen": 64,
    "n_depth": 512,
    "avg_ts": 13.0,
    "samples_ts": [ 13.0, 12.0, 14.0 ]
  },
  {
    "n_prompt": 512,
    "n_gen": 64,
    "avg_ts": 30.0
  },
  {
    "n_prompt": 2048,
    "n_gen": 64,
    "test": "tg64@pp2048",
    "avg_ts": 11.5
  }
]
)";

constexpr const char* kMlx =
    "Running warmup..\n"
    "Timing with prompt_tokens=512, generation_tokens=64, batch_size=1.\n"
    "Trial 1:  prompt_tps=2536.125, generation_tps=148.500, peak_memory=19.912\n"
    "Trial 2:  prompt_tps=2540.000, generation_tps=149.500, peak_memory=19.912\n"
    "Averages: prompt_tps=2538.062, generation_tps=149.000, peak_memory=19.912\n";

void expect_test(const PeerTest& t, Kind kind, int tokens, int depth, const std::vector<double>& rates) {
  EXPECT_EQ(t.kind, kind);
  EXPECT_EQ(t.tokens, tokens);
  EXPECT_EQ(t.depth, depth);
  EXPECT_EQ(t.rates, rates);
}

TEST(Peer, LlamaBench) {
  for (const std::string& before : {std::string(), std::string("loading...\n\n")}) {
    const auto tests = parse_peer(before + kLlamaBench);
    ASSERT_TRUE(tests) << tests.error().message;
    ASSERT_EQ(tests->size(), 4u) << "a prompt and an answer in one figure cannot be compared";
    expect_test((*tests)[0], Kind::kPrefill, 512, 0, {40, 42.5});
    expect_test((*tests)[1], Kind::kPrefill, 512, 8192, {28.5});
    expect_test((*tests)[2], Kind::kDecode, 64, 512, {13, 12, 14});
    expect_test((*tests)[3], Kind::kDecode, 64, 2048, {11.5});
  }
}

TEST(Peer, MlxBenchmark) {
  const auto tests = parse_peer(std::string("Fetching 12 files: 100%\n") + kMlx);
  ASSERT_TRUE(tests) << tests.error().message;
  ASSERT_EQ(tests->size(), 2u);
  expect_test((*tests)[0], Kind::kPrefill, 512, 0, {2536.125, 2540});
  expect_test((*tests)[1], Kind::kDecode, 64, 512, {148.5, 149.5});
  // Two runs in one command.
  std::string second = kMlx;
  for (size_t at; (at = second.find("512")) != std::string::npos;) second.replace(at, 3, "256");
  const auto both = parse_peer(kMlx + second);
  ASSERT_TRUE(both) << both.error().message;
  ASSERT_EQ(both->size(), 4u);
  expect_test((*both)[3], Kind::kDecode, 64, 256, {148.5, 149.5});
}

TEST(Peer, WhatCannotBeReadIsRefused) {
  const std::string deep(100000, '[');
  const std::pair<std::string, std::string> cases[] = {
      {"", "no measurement"},
      {"hello\n", "no measurement"},
      {std::string("\0\xff\x1b[31m", 7), "no measurement"},
      {"[]", "no measurement"},
      {"[", "line"},
      {deep, "deep"},
      {"[1]", "not an object"},
      {"[{}]", "neither"},
      {R"([{"n_prompt": 512}])", "samples_ts"},
      {R"([{"n_prompt": -1, "avg_ts": 5}])", "n_prompt"},
      {R"([{"n_prompt": 1.5, "avg_ts": 5}])", "n_prompt"},
      {R"([{"n_prompt": 99999999999999999999, "avg_ts": 5}])", "n_prompt"},
      {R"([{"n_gen": "64", "avg_ts": 5}])", "n_gen"},
      {R"([{"n_prompt": 512, "n_depth": 1e9, "avg_ts": 5}])", "n_depth"},
      {R"([{"n_prompt": 512, "avg_ts": 0}])", "positive"},
      {R"([{"n_prompt": 512, "avg_ts": -3}])", "positive"},
      {R"([{"n_prompt": 512, "samples_ts": [5, "x"]}])", "positive"},
      {R"([{"n_prompt": 512, "samples_ts": [5, null]}])", "positive"},
      {"Timing with x\n", "prompt_tokens"},
      {"Timing with prompt_tokens=0, generation_tokens=4\n", "prompt_tokens"},
      {"Timing with prompt_tokens=99999999999, generation_tokens=4\n", "prompt_tokens"},
      {"Timing with prompt_tokens=4, generation_tokens=4, batch_size=8.\n", "batch_size"},
      {"Trial 1:  prompt_tps=1, generation_tps=1\n", "before"},
      {"Timing with prompt_tokens=4, generation_tokens=4\nTrial 1:  prompt_tps=inf, generation_tps=1\n", "above 0"},
      {"Timing with prompt_tokens=4, generation_tokens=4\nTrial 1:  prompt_tps=4\n", "above 0"},
      {"Timing with prompt_tokens=4, generation_tokens=4\n", "no measurement"},
  };
  for (const auto& [output, what] : cases) {
    const auto tests = parse_peer(output);
    ASSERT_FALSE(tests) << output.substr(0, 80);
    EXPECT_NE(tests.error().message.find(what), std::string::npos) << tests.error().message;
    EXPECT_EQ(tests.error().message.find('\n'), std::string::npos) << tests.error().message;
  }
}

TEST(Peer, NoPrefixCrashes) {
  for (const std::string& whole : {std::string(kLlamaBench), std::string(kMlx)}) {
    for (size_t n = 0; n < whole.size(); ++n) {
      if (const auto tests = parse_peer(whole.substr(0, n))) {
        for (const PeerTest& t : *tests) EXPECT_FALSE(t.rates.empty());
      }
    }
  }
}

TEST(Peer, RatesOfARow) {
  const std::vector<PeerTest> tests = {{Kind::kPrefill, 512, 0, {40, 50}},  {Kind::kPrefill, 512, 0, {60}},
                                       {Kind::kPrefill, 512, 8192, {28}},   {Kind::kDecode, 64, 512, {13}},
                                       {Kind::kDecode, 128, 512, {15, 17}}, {Kind::kDecode, 64, 8192, {10}},
                                       {Kind::kDecode, 64, 0, {20}}};
  const auto rates = [&](const BenchRow& row) {
    const PeerRates r = peer_rates(tests, row);
    return std::pair(r.prefill, r.decode);
  };
  EXPECT_EQ(rates({0, 512, 64}), (std::pair(50.0, 15.0)));
  EXPECT_EQ(rates({8192, 512, 64}), (std::pair(28.0, 10.0)));
  EXPECT_EQ(rates({0, 1024, 64}), (std::pair(0.0, 0.0)));
}

}  // namespace
}  // namespace calla
