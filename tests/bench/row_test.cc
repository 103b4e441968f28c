#include "bench/row.h"

#include <gtest/gtest.h>

#include <limits>

namespace calla {
namespace {

BenchRound round_of(double prefill, double decode, const std::string& digest = "d") {
  BenchRound r;
  r.prefill_seconds = prefill;
  r.first_token_seconds = prefill + 0.5;
  r.decode_seconds = decode;
  r.digest = digest;
  return r;
}

TEST(BenchRow, WhereItsSpeedsAreMeasured) {
  const BenchRow matrix{0, 4096, 64}, deep{8192, 512, 64}, long_answer{8192, 16, 64};
  EXPECT_EQ(matrix.decode_depth(), 4096);
  EXPECT_EQ(matrix.positions(), 4160);
  EXPECT_EQ(matrix.name(), "4,096");
  EXPECT_EQ(deep.decode_depth(), 8192);
  EXPECT_EQ(deep.positions(), 8704);
  EXPECT_EQ(deep.name(), "8,192+512");
  EXPECT_EQ(long_answer.positions(), 8256);
}

TEST(BenchPrompt, FollowsTheFormula) {
  for (const int vocab : {7, 4096, 248320}) {
    const std::vector<int32_t> ids = bench_prompt(vocab, 3000);
    ASSERT_EQ(ids.size(), 3000u);
    for (uint64_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(static_cast<uint64_t>(ids[i]), i * 2654435761ull % 4294967296ull % static_cast<uint64_t>(vocab)) << i;
    }
  }
  EXPECT_EQ(bench_prompt(248320, 2), (std::vector<int32_t>{0, 143281}));
}

TEST(BenchDigest, IsTheHashOfLittleEndianIds) {
  // By Python: sha256(struct.pack("<3i", 1, 70000, 3)).
  EXPECT_EQ(token_digest(std::vector<int32_t>{1, 70000, 3}),
            "7594b6705c8ae19a0bcfc174d23e31e59b8b8fb54799267ada82438174195158");
}

TEST(Median, OfOddAndEvenCounts) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 100}), 3.5);
}

TEST(BenchSummary, MediansAndSpreads) {
  const BenchRow row{0, 100, 10};
  const std::vector<BenchRound> rounds = {round_of(2, 1), round_of(2.5, 1), round_of(1, 1.25)};
  const BenchSummary s = summarise(row, rounds, {}, 10);
  EXPECT_DOUBLE_EQ(s.prefill_rate, 50);
  EXPECT_DOUBLE_EQ(s.prefill_spread, (100.0 - 40) / 50);
  EXPECT_DOUBLE_EQ(s.decode_rate, 10);
  EXPECT_DOUBLE_EQ(s.decode_spread, (10.0 - 8) / 10);
  EXPECT_DOUBLE_EQ(s.first_token_seconds, 2.5);
  EXPECT_FALSE(s.prefill_joules);
  EXPECT_EQ(s.refused, "");
}

TEST(BenchSummary, RefusesWhatDiffersByMoreThanTheTolerance) {
  const BenchRow row{0, 100, 100};
  const auto refused = [&](double prefill, double decode) {
    const std::vector<BenchRound> rounds = {round_of(1, 1), round_of(prefill, decode)};
    return summarise(row, rounds, {}, 0.03).refused;
  };
  EXPECT_EQ(refused(1, 1), "");
  EXPECT_EQ(refused(1.029, 1 / 1.029), "");
  EXPECT_EQ(refused(1.05, 1), "prefill differs by 4.9 %");
  EXPECT_EQ(refused(1, 0.95), "decode differs by 5.1 %");
  EXPECT_EQ(refused(1.05, 0.95), "prefill differs by 4.9 %, decode differs by 5.1 %");
  // A clock that stood still is no measurement.
  EXPECT_NE(refused(0, 1), "");
  EXPECT_NE(refused(std::numeric_limits<double>::quiet_NaN(), 1), "");
}

TEST(BenchSummary, RefusesOtherTokens) {
  const BenchRow row{0, 100, 100};
  const std::vector<BenchRound> same = {round_of(1, 1, "a"), round_of(1, 1, "a")};
  const std::vector<BenchRound> other = {round_of(1, 1, "b")};
  const std::vector<BenchRound> mixed = {round_of(1, 1, "a"), round_of(1, 1, "b")};
  EXPECT_EQ(summarise(row, same, same, 1).refused, "");
  EXPECT_EQ(summarise(row, mixed, {}, 1).refused, "rounds gave different tokens");
  EXPECT_EQ(summarise(row, same, other, 1).refused, "rounds gave different tokens") << "the warm-up counts too";
}

TEST(BenchSummary, EnergyOnlyWhereEveryRoundHasIt) {
  const BenchRow row{0, 100, 10};
  std::vector<BenchRound> rounds = {round_of(1, 1), round_of(1, 1)};
  rounds[0].prefill_joules = 100;
  rounds[1].prefill_joules = 300;
  rounds[0].decode_joules = 5;
  const BenchSummary s = summarise(row, rounds, {}, 1);
  EXPECT_DOUBLE_EQ(s.prefill_joules.value(), 2);
  EXPECT_FALSE(s.decode_joules);
}

TEST(BenchCost, CountsByHand) {
  // One layer attends (2 heads, 1 for keys and values), one is a delta net (1 key head, 2 value heads: 512 channels).
  Weights w;
  w.config.attends = {true, false};
  w.config.layers = 2;
  w.config.heads = 2;
  w.config.kv_heads = w.config.k_heads = 1;
  w.config.v_heads = 2;
  const auto matrix = [](int out, int in) { return Linear{Linear::Format::kBf16, out, in}; };
  w.head = matrix(10, 64);
  w.layers.resize(2);
  for (Layer& layer : w.layers) {
    layer.moe.router = matrix(2, 64);
    layer.moe.experts.assign(2, {matrix(64, 64), matrix(64, 64), matrix(64, 64)});
    layer.moe.shared = {matrix(64, 64), matrix(64, 64), matrix(64, 64)};
    layer.moe.shared_gate = matrix(1, 64);
    layer.moe.top_k = 1;
  }
  w.layers[0].attends = true;
  w.layers[0].attn.q = matrix(3, 64);
  w.layers[1].gdn.qkv = matrix(5, 64);
  const double rows = 3 + 5 + 2 * (2 + 3 * 64 + 3 * 64 + 1);  // all of width 64

  const BenchRow row{0, 100, 9};
  const BenchCost cost = cost_of(w, row);
  EXPECT_DOUBLE_EQ(cost.prefill_macs, 100 * 64 * rows + 640);
  // Recurrent 2·128·128 and window 3·512 in f32, read and written; keys and values 2·256 bf16 a position, 100 of them
  // before the 9 steps, which add 1 to 9: 5 on average.
  EXPECT_DOUBLE_EQ(cost.decode_bytes, 2 * 64 * (rows + 10) + 2 * 4 * (2 * 128 * 128 + 3 * 512) + 105 * 2 * 256 * 2);
}

}  // namespace
}  // namespace calla
