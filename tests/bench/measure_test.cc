// Measuring, on Bud: what runs is what a plain loop over the runner gives, and the profile adds up to the model's own
// counts.

#include "bench/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "bench/session.h"
#include "formats/checkpoint.h"
#include "model/state.h"

namespace calla {
namespace {

const std::string kBud = CALLA_SOURCE_DIR "/models/bud";

class Measuring : public testing::Test {
 protected:
  std::unique_ptr<Runner> open(Profile* profile = nullptr) {
    RunnerOptions options;
    options.context = 256;
    options.chunk = 32;
    options.profile = profile;
    auto runner = open_runner(kBud, options);
    EXPECT_TRUE(runner) << runner.error().message;
    return std::move(*runner);
  }

  static int32_t feed(Runner& runner, Sequence& s, std::span<const int32_t> tokens) {
    std::vector<float> logits;
    const Step step{&s, tokens, Step::Logits::kLast};
    EXPECT_TRUE(runner.forward({&step, 1}, logits));
    return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
};

TEST_F(Measuring, EveryRoundIsThePlainLoop) {
  const auto runner = open();
  const BenchRow row{0, 50, 5};
  const auto prompt = bench_prompt(runner->config().vocab, 50);
  const auto s = *runner->start();
  std::vector<int32_t> ids = {feed(*runner, *s, prompt)};
  for (int i = 0; i < 5; ++i) ids.push_back(feed(*runner, *s, {&ids.back(), 1}));

  std::vector<int> done;
  MeasureOptions options;
  options.rounds = 3;
  options.on_tokens = [&](int n) {
    done.push_back(n);
    return true;
  };
  const auto rounds = measure(*runner, row, options);
  ASSERT_TRUE(rounds) << rounds.error().message;
  ASSERT_EQ(rounds->size(), 3u);
  for (const BenchRound& r : *rounds) {
    EXPECT_EQ(r.digest, token_digest(ids));
    EXPECT_GT(r.prefill_seconds, 0);
    EXPECT_GE(r.first_token_seconds, r.prefill_seconds);
    EXPECT_GT(r.decode_seconds, 0);
    EXPECT_GT(r.memory.anonymous, 0u);
    EXPECT_GE(r.memory.total, r.memory.anonymous);
    EXPECT_TRUE(r.prefill_verbs.verbs.empty());
  }
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(done.front(), 32) << "the first pass";
  EXPECT_EQ(done.back(), measure_tokens(row, 3));
}

TEST_F(Measuring, AtADepthBothSpeedsStartThere) {
  const auto runner = open();
  const BenchRow row{70, 40, 4};
  const std::vector<int32_t> all = bench_prompt(runner->config().vocab, 110);
  const auto long_one = *runner->start();
  feed(*runner, *long_one, std::span(all).first(70));
  const auto deep = *runner->fork(*long_one);
  std::vector<int32_t> ids = {feed(*runner, *long_one, std::span(all).subspan(70))};
  for (int i = 0; i < 4; ++i) ids.push_back(feed(*runner, *deep, {&ids.back(), 1}));

  const auto rounds = measure(*runner, row, {2, nullptr, nullptr, {}});
  ASSERT_TRUE(rounds) << rounds.error().message;
  for (const BenchRound& r : *rounds) EXPECT_EQ(r.digest, token_digest(ids));
}

TEST_F(Measuring, CanBeStopped) {
  const auto runner = open();
  MeasureOptions options;
  options.on_tokens = [](int done) { return done < 60; };
  const auto rounds = measure(*runner, {0, 50, 100}, options);
  ASSERT_FALSE(rounds);
  EXPECT_EQ(rounds.error().code, Error::Code::kCancelled);
}

TEST_F(Measuring, ProfileChangesNothingAndAddsUp) {
  Profile profile;
  const auto plain = open(), profiled = open(&profile);
  const BenchRow row{0, 70, 6};
  const auto expected = measure(*plain, row, {1, nullptr, nullptr, {}});
  const auto rounds = measure(*profiled, row, {1, &profile, nullptr, {}});
  ASSERT_TRUE(expected && rounds);
  EXPECT_EQ(rounds->front().digest, expected->front().digest);

  const auto checkpoint = Checkpoint::open(kBud);
  ASSERT_TRUE(checkpoint);
  const auto weights = bind_weights(*checkpoint);
  ASSERT_TRUE(weights);
  const ModelConfig& c = weights->config;
  const auto sum = [](const Profile& p, std::string_view verb, auto VerbCost::*field) {
    uint64_t total = 0;
    for (const VerbCost& v : p.verbs) total += v.verb == verb ? v.*field : 0;
    return total;
  };
  const Profile& prefill = rounds->front().prefill_verbs;
  const Profile& decode = rounds->front().decode_verbs;

  // 70 rows in chunks of 32 are three passes.
  EXPECT_EQ(sum(prefill, "moe", &VerbCost::calls), 3u * c.layers);
  EXPECT_EQ(sum(decode, "moe", &VerbCost::calls), 6u * c.layers);
  EXPECT_EQ(sum(decode, "embed", &VerbCost::calls), 6u);
  EXPECT_EQ(sum(decode, "attend", &VerbCost::calls), 6u * c.attention_layers());
  EXPECT_EQ(sum(decode, "delta_rule", &VerbCost::calls), 6u * c.delta_layers());

  // Products: the model's own counts.
  const uint64_t head = weights->head.macs();
  EXPECT_EQ(sum(prefill, "project", &VerbCost::macs) + sum(prefill, "moe", &VerbCost::macs),
            70 * weights->macs_per_token() + head);
  EXPECT_EQ(sum(decode, "project", &VerbCost::macs) + sum(decode, "moe", &VerbCost::macs),
            6 * (weights->macs_per_token() + head));
  // Bytes of one token's weights, without the vectors that bytes_per_token has besides.
  uint64_t vectors = 0;
  for (const Layer& l : weights->layers) {
    vectors += l.attends ? l.attn.q_norm.size() + l.attn.k_norm.size()
                         : l.gdn.conv.size() + l.gdn.A_log.size() + l.gdn.dt_bias.size() + l.gdn.norm.size();
  }
  EXPECT_EQ(sum(decode, "project", &VerbCost::bytes) + sum(decode, "moe", &VerbCost::bytes),
            6 * (weights->bytes_per_token() - 2 * vectors));

  // State: the recurrent part of every layer read and written once a step; position p reads p + 1 keys and values and
  // writes its own.
  const StateShape state(c);
  EXPECT_EQ(sum(decode, "delta_rule", &VerbCost::bytes), 6 * 2 * sizeof(float) * state.recurrent_size());
  uint64_t positions = 0;
  for (uint64_t p = 70; p < 76; ++p) positions += p + 2;
  EXPECT_EQ(sum(decode, "attend", &VerbCost::bytes), positions * sizeof(bf16) * (state.page_size() / kPage));
  uint64_t pairs = 0;
  for (uint64_t p = 0; p < 70; ++p) pairs += p + 1;
  EXPECT_EQ(sum(prefill, "attend", &VerbCost::macs), pairs * c.attention_layers() * c.heads * kHeadDim * 2);

  // Time: the verbs are nearly everything, and no more than that.
  double seconds = 0;
  for (const VerbCost& v : decode.verbs) seconds += v.seconds;
  EXPECT_GT(seconds, 0);
  EXPECT_LE(seconds, rounds->front().decode_seconds);
}

TEST_F(Measuring, OnlyTheCpuBackendIsProfiled) {
  Profile profile;
  RunnerOptions options;
  options.backend = RunnerOptions::Backend::kReference;
  options.profile = &profile;
  const auto runner = open_runner(kBud, options);
  ASSERT_FALSE(runner);
  EXPECT_EQ(runner.error().code, Error::Code::kUnsupported);
}

TEST_F(Measuring, ASessionWarmsUpOnceWithoutAPeerAndEveryTimeWithOne) {
  BenchOptions options;
  options.model = kBud;
  options.rows = {{0, 16, 2}, {0, 24, 2}};
  options.rounds = 3;
  const std::atomic<bool> cancel = false;
  const auto alone = run_bench(options, cancel);
  ASSERT_TRUE(alone) << alone.error().message;
  ASSERT_EQ(alone->results.size(), 2u);
  EXPECT_EQ(alone->results[1].rounds.size(), 3u);
  EXPECT_EQ(alone->results[1].warm_ups.size(), 1u);
  EXPECT_EQ(alone->load_seconds.size(), 1u);
  EXPECT_GT(alone->ceilings.read, 0);
  EXPECT_GT(alone->ceilings.matrix, 0);

  options.peer = R"(echo '[{"n_prompt": 16, "avg_ts": 5}, {"n_gen": 4, "n_depth": 24, "avg_ts": 7}]')";
  const auto compared = run_bench(options, cancel);
  ASSERT_TRUE(compared) << compared.error().message;
  EXPECT_EQ(compared->results[0].warm_ups.size(), 3u);
  EXPECT_EQ(compared->load_seconds.size(), 3u);
  EXPECT_EQ(compared->peer_tests.size(), 6u);
  EXPECT_EQ(compared->results[0].rounds[0].digest, alone->results[0].rounds[0].digest);
}

TEST_F(Measuring, RowsThatWouldTakeTooLongAreLeftOut) {
  BenchOptions options;
  options.model = kBud;
  options.rows = {{0, 16, 2}, {0, 24, 2}, {0, 48, 2}};
  options.row_seconds = 1e-6;
  const auto report = run_bench(options, std::atomic<bool>(false));
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->results.size(), 1u) << "the first is always measured";
  EXPECT_EQ(report->results[0].rounds.size(), 2u);
  EXPECT_EQ(report->skipped, (std::vector<BenchRow>{{0, 24, 2}, {0, 48, 2}}));
}

}  // namespace
}  // namespace calla
