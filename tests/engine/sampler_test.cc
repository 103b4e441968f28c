#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace calla {
namespace {

// The plain form: f64 (after the penalties, whose f32 rounding can make or break ties), a full sort, libm. Gives every
// token that may be chosen with its probability, in the order in which the sampler lays its random number along them.
struct Choice {
  int32_t id;
  double p;
};
std::vector<Choice> slow_distribution(std::vector<float> l, const SamplingParams& s, const std::vector<int32_t>& prompt,
                                      const std::vector<int32_t>& answer) {
  std::map<int32_t, int> count, known;
  for (int32_t id : prompt) known[id] = 1;
  for (int32_t id : answer) ++count[id], known[id] = 1;
  for (auto [id, one] : known) l[id] = l[id] > 0 ? l[id] / s.repetition_penalty : l[id] * s.repetition_penalty;
  for (auto [id, n] : count) l[id] -= s.frequency_penalty * static_cast<float>(n) + s.presence_penalty;
  for (auto [id, b] : s.bias) l[id] += b;
  std::vector<int32_t> order(l.size());
  std::iota(order.begin(), order.end(), 0);
  auto by_logit = [&](int32_t a, int32_t b) { return l[a] > l[b] || (l[a] == l[b] && a < b); };
  if (s.temperature < 1e-5f) return {{*std::min_element(order.begin(), order.end(), by_logit), 1.0}};
  const bool limited = s.top_k > 0 && static_cast<size_t>(s.top_k) < l.size();
  if (limited || s.top_p < 1) std::sort(order.begin(), order.end(), by_logit);
  const double best = *std::max_element(l.begin(), l.end());
  std::vector<Choice> out;
  for (int32_t id : order) out.push_back({id, std::exp((double{l[id]} - best) / s.temperature)});
  auto normalise = [&] {
    double sum = 0;
    for (auto& c : out) sum += c.p;
    for (auto& c : out) c.p /= sum;
  };
  if (limited) out.resize(s.top_k);
  normalise();
  if (s.top_p < 1) {
    double sum = 0;
    size_t n = 0;
    while (n < out.size() && sum < s.top_p) sum += out[n++].p;
    out.resize(std::max<size_t>(n, 1));
    normalise();
  }
  if (s.min_p > 0) {
    const double top = std::max_element(out.begin(), out.end(), [](auto& a, auto& b) { return a.p < b.p; })->p;
    std::erase_if(out, [&](const Choice& c) { return c.p < s.min_p * top; });
    normalise();
  }
  return out;
}

std::vector<float> random_logits(Random& random, int n, double spread) {
  std::vector<float> l(n);
  for (float& x : l) x = static_cast<float>(random.normal() * spread);
  return l;
}

// Every filter and penalty, alone and combined, on vocabularies of odd sizes, token by token along an answer.
TEST(Sampler, AgreesWithThePlainForm) {
  Random random(1);
  auto pick = [&](std::vector<float> values) { return values[random.below(values.size())]; };
  int drawn = 0, at_an_edge = 0;
  for (int round = 0; round < 1500; ++round) {
    const int n = std::vector<int>{1, 2, 63, 64, 65, 100, 1000, 5003}[random.below(8)];
    SamplingParams s;
    s.temperature = pick({0, 0.1f, 0.7f, 1, 1, 2});
    s.top_k = static_cast<int>(pick({0, 0, 1, 2, 20, 64, 6000}));
    s.top_p = pick({1, 1, 0.95f, 0.5f, 0.01f, 0.999f});
    s.min_p = pick({0, 0, 0.05f, 0.5f, 0.99f});
    s.presence_penalty = pick({0, 0, 1.5f, -1});
    s.frequency_penalty = pick({0, 0, 0.5f});
    s.repetition_penalty = pick({1, 1, 1.3f, 0.8f});
    if (random.below(3) == 0)
      s.bias = {{static_cast<int32_t>(random.below(n)), 2.5f}, {static_cast<int32_t>(random.below(n)), -100}};
    if (s.bias.size() == 2 && s.bias[0].first == s.bias[1].first) s.bias.pop_back();
    s.seed = random.next();
    std::vector<int32_t> prompt(random.below(5)), answer;
    for (int32_t& id : prompt) id = static_cast<int32_t>(random.below(n));
    Sampler sampler(s, n, prompt);
    Random stream(*s.seed);
    for (int step = 0; step < 4; ++step) {
      std::vector<float> l = random_logits(random, n + 7, pick({0.01f, 1, 4}));
      if (random.below(4) == 0) std::fill(l.begin(), l.end(), 1.0f);  // all equal
      for (int i = n; i < n + 7; ++i) l[i] = 1e9f;                    // padding of the vocabulary
      const std::vector<float> before = l;
      const auto expected = slow_distribution({l.begin(), l.begin() + n}, s, prompt, answer);
      const auto got = sampler.sample(l);
      ASSERT_TRUE(got) << got.error().message;
      ASSERT_EQ(l, before) << "the row was not restored";
      answer.push_back(got->id);
      if (s.temperature == 0) {
        ASSERT_EQ(got->id, expected[0].id);
        continue;
      }
      const double u = stream.uniform();
      double sum = 0, margin = 1;
      int32_t want = expected.back().id;
      bool found = false;
      for (const Choice& c : expected) {
        margin = std::min(margin, std::abs(u - sum));
        sum += c.p;
        if (!found && u < sum) found = true, want = c.id;
      }
      ++drawn;
      if (want == got->id) continue;
      // Rounding may decide at the edge of an interval, or which of several equal tokens a filter ends at; that must be
      // rare.
      ++at_an_edge;
      ASSERT_TRUE(margin < 1e-5 || s.min_p > 0 || s.top_p < 1) << "round " << round;
    }
  }
  EXPECT_GT(drawn, 4000);
  EXPECT_LT(at_an_edge, drawn / 200);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  Random random(7);
  const std::vector<float> logits = random_logits(random, 300, 1.5);
  for (const int top_k : {0, 20}) {
    SamplingParams s;
    s.temperature = 0.8f;
    s.top_k = top_k;
    s.top_p = 0.9f;
    s.seed = 42;
    const auto expected = slow_distribution({logits.begin(), logits.end()}, s, {}, {});
    Sampler sampler(s, 300, {});
    std::map<int32_t, int> seen;
    constexpr int kDraws = 100000;
    std::vector<float> row = logits;
    for (int i = 0; i < kDraws; ++i) ++seen[sampler.sample(row)->id];
    double chi2 = 0;
    int total = 0;
    for (const Choice& c : expected) {
      const double e = c.p * kDraws;
      chi2 += (seen[c.id] - e) * (seen[c.id] - e) / e;
      total += seen[c.id];
    }
    EXPECT_EQ(total, kDraws) << "a token outside the filters was drawn";
    // Mean k−1, deviation √(2(k−1)); five deviations.
    const double freedom = static_cast<double>(expected.size()) - 1;
    EXPECT_LT(chi2, freedom + 5 * std::sqrt(2 * freedom)) << "k = " << expected.size();
  }
}

// A mask is −inf in the logits of what it forbids, and changes neither the row nor the log-probabilities.
TEST(Sampler, AMaskIsMinusInfinity) {
  Random random(21);
  for (const int n : {1, 63, 64, 65, 300}) {
    for (int round = 0; round < 20; ++round) {
      SamplingParams params;
      params.seed = random.next();
      params.temperature = round % 2 == 0 ? 0.0f : 1.0f;
      params.top_k = round % 3 == 0 ? 5 : 0;
      params.presence_penalty = 0.5f;
      std::vector<uint64_t> mask((n + 63) / 64);
      for (uint64_t& word : mask) word = round % 4 == 0 ? random.next() : round % 4 == 1 ? 0 : ~uint64_t{0};
      mask[0] |= 1;
      const std::vector<int32_t> prompt{0};
      Sampler masked(params, n, prompt), plain(params, n, prompt);
      params.logprobs = 2;
      Sampler explained(params, n, prompt);
      for (int step = 0; step < 5; ++step) {
        std::vector<float> logits = random_logits(random, n, 3);
        const std::vector<float> row = logits;
        std::vector<float> without = logits;
        for (int i = 0; i < n; ++i) {
          if ((mask[i / 64] >> (i % 64) & 1) == 0) without[i] = -INFINITY;
        }
        const Sampled got = masked.sample(logits, mask).value();
        EXPECT_EQ(got.id, plain.sample(without).value().id);
        EXPECT_EQ(logits, row);
        const Sampled with = explained.sample(logits, mask).value();
        Sampler raw(params, n, prompt);
        EXPECT_EQ(with.top[0].logprob, raw.sample(logits).value().top[0].logprob);
      }
    }
  }
}

// What is forced counts as chosen, and takes no random number.
TEST(Sampler, ForcedTokensCount) {
  SamplingParams params;
  params.seed = 4;
  params.frequency_penalty = 2;
  params.logprobs = 0;
  Sampler forced(params, 10, {}), free(params, 10, {});
  std::vector<float> logits(10, 1.0f);
  EXPECT_NEAR(forced.force(logits, 3).value().logprob, -std::log(10), 1e-6);
  std::vector<float> penalised = logits;
  penalised[3] -= 2;
  EXPECT_EQ(forced.sample(logits).value().id, free.sample(penalised).value().id);
}

TEST(Sampler, SameSeedSameTokens) {
  Random random(3);
  std::vector<std::vector<float>> rows;
  for (int i = 0; i < 200; ++i) rows.push_back(random_logits(random, 1000, 2));
  auto draw = [&](uint64_t seed) {
    SamplingParams s;
    s.top_p = 0.95f;
    s.seed = seed;
    Sampler sampler(s, 1000, {});
    std::vector<int32_t> ids;
    for (auto& row : rows) ids.push_back(sampler.sample(row)->id);
    return ids;
  };
  EXPECT_EQ(draw(5), draw(5));
  EXPECT_NE(draw(5), draw(6));
  // Every machine gives these: neither the logits nor the sampler use libm.
  std::vector<float> row(1000);
  Random flat(4);
  for (float& l : row) l = static_cast<float>(8 * flat.uniform());
  SamplingParams fixed;
  fixed.top_k = 40;
  fixed.seed = 5;
  Sampler sampler(fixed, 1000, {});
  std::vector<int32_t> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(sampler.sample(row)->id);
  EXPECT_EQ(ids, (std::vector<int32_t>{324, 413, 697, 556, 634, 686}));
  SamplingParams unseeded;
  EXPECT_NE(Sampler(unseeded, 10, {}).seed(), Sampler(unseeded, 10, {}).seed());
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  Random random(11);
  std::vector<float> row = random_logits(random, 777, 3);
  SamplingParams s;
  s.temperature = 0.3f;
  s.presence_penalty = 2;
  s.bias = {{5, 3.0f}};
  s.seed = 1;
  s.logprobs = 4;
  Sampler sampler(s, 770, {});
  for (int step = 0; step < 5; ++step) {
    const auto got = sampler.sample(row);
    ASSERT_TRUE(got);
    double sum = 0;
    for (int i = 0; i < 770; ++i) sum += std::exp(double{row[i]});
    EXPECT_NEAR(got->logprob, row[got->id] - std::log(sum), 1e-6);
    ASSERT_EQ(got->top.size(), 4u);
    std::vector<float> sorted(row.begin(), row.begin() + 770);
    std::sort(sorted.rbegin(), sorted.rend());
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(got->top[i].logprob, sorted[i] - std::log(sum), 1e-6);
  }
}

TEST(Sampler, BadLogitsAreErrors) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, -nan, inf}) {
    for (const float temperature : {0.0f, 1.0f}) {
      for (const int at : {0, 63, 64, 129}) {
        SamplingParams s;
        s.temperature = temperature;
        std::vector<float> row(130, 0.5f);
        row[at] = bad;
        EXPECT_FALSE(Sampler(s, 130, {}).sample(row));
        EXPECT_TRUE(at == 129 ? bool(Sampler(s, 129, {}).sample(row)) : true) << "padding does not matter";
      }
    }
  }
  std::vector<float> none(130, -inf);
  EXPECT_FALSE(Sampler({}, 130, {}).sample(none));
  none[77] = -5;  // the only one that may be chosen
  for (const auto& [k, p] : std::vector<std::pair<int, float>>{{0, 1.0f}, {20, 1.0f}, {0, 0.5f}, {20, 0.5f}}) {
    SamplingParams s;
    s.top_k = k;
    s.top_p = p;
    s.logprobs = 3;
    const auto got = Sampler(s, 130, {}).sample(none);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->id, 77);
    EXPECT_EQ(got->logprob, 0);
    EXPECT_EQ(got->top.size(), 1u);
  }
}

TEST(Sampler, ChecksRanges) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto message = [](auto set) {
    SamplingParams s;
    set(s);
    const auto r = check_sampling(s);
    return r ? std::string() : r.error().message;
  };
  EXPECT_EQ(message([](auto&) {}), "");
  for (const float v : {-1.0f, nan, 101.0f}) {
    EXPECT_NE(message([&](auto& s) { s.temperature = v; }).find("temperature"), std::string::npos);
  }
  for (const float v : {0.0f, 2.0f, nan})
    EXPECT_NE(message([&](auto& s) { s.top_p = v; }).find("top_p"), std::string::npos);
  for (const float v : {-0.1f, 1.0f, nan})
    EXPECT_NE(message([&](auto& s) { s.min_p = v; }).find("min_p"), std::string::npos);
  EXPECT_NE(message([&](auto& s) { s.top_k = -1; }), "");
  EXPECT_NE(message([&](auto& s) { s.repetition_penalty = 0; }), "");
  EXPECT_NE(message([&](auto& s) { s.bias = {{3, 101.0f}}; }), "");
  EXPECT_NE(message([&](auto& s) { s.logprobs = 101; }), "");
}

}  // namespace
}  // namespace calla
