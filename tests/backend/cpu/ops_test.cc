// The verbs of the CPU backend against the reference backend, for every table: batches of several runs, splits,
// threads, order.

#include "backend/cpu/ops_cpu.h"

#include <functional>
#include <optional>
#include <tuple>

#include "backend/reference/ops_reference.h"
#include "base/pool.h"
#include "model/forward.h"
#include "model/scratch.h"
#include "tests/backend/cpu/testing.h"

namespace calla::testing {
namespace {

constexpr int kMaxRows = 160;

// Sequences in both backends' states, side by side.
struct Pair {
  Pair(const StateShape& shape, PagePool<bf16>& cpu_pages, PagePool<double>& ref_pages)
      : cpu(shape, cpu_pages), ref(shape, ref_pages) {}
  HostState<bf16, float> cpu;
  HostState<double, double> ref;
};

// A batch for both: run i feeds counts[i] rows to sequence i.
struct Both {
  std::vector<Run<CpuOps::State>> cpu_runs;
  std::vector<Run<ReferenceOps::State>> ref_runs;
  Batch<CpuOps::State> cpu;
  Batch<ReferenceOps::State> ref;
  int rows = 0;
};

class Verbs : public EveryTable {
 protected:
  ModelConfig config = small_config();
  StateShape shape{config};
  PagePool<bf16> cpu_pages{shape.page_size(), 400};
  PagePool<double> ref_pages{shape.page_size(), 400};
  Pool pool{2};
  CpuOps cpu{config, pool, k, kMaxRows};
  ReferenceOps ref{config};
  std::vector<std::unique_ptr<Pair>> pairs;

  void sequences(int count) {
    while (static_cast<int>(pairs.size()) < count) pairs.push_back(std::make_unique<Pair>(shape, cpu_pages, ref_pages));
  }
  // Rows of the sequences `order`, in that order; each has `counts[s]` rows from positions[s] on.
  Both batch(std::span<const int> counts, std::span<const int> positions) {
    Both b;
    sequences(static_cast<int>(counts.size()));
    for (size_t s = 0; s < counts.size(); ++s) {
      EXPECT_TRUE(pairs[s]->cpu.reserve(positions[s], positions[s] + counts[s]));
      EXPECT_TRUE(pairs[s]->ref.reserve(positions[s], positions[s] + counts[s]));
      b.cpu_runs.push_back({&pairs[s]->cpu, b.rows, counts[s], positions[s]});
      b.ref_runs.push_back({&pairs[s]->ref, b.rows, counts[s], positions[s]});
      b.rows += counts[s];
    }
    b.cpu.runs = b.cpu_runs;
    b.ref.runs = b.ref_runs;
    return b;
  }
};
CALLA_EVERY_TABLE(Verbs);

// Activations in both precisions; outputs are poisoned.
struct Twin {
  Twin(int rows, int cols)
      : f(size_t(rows) * cols), d(size_t(rows) * cols, NAN), cpu(f.data(), rows, cols), ref(d.data(), rows, cols) {}
  Twin& randomise(Random& random, double scale = 1, bool as_bf16 = false) {
    for (size_t i = 0; i < d.size(); ++i) {
      const auto v = static_cast<float>(random.normal() * scale);
      d[i] = f[i] = as_bf16 ? to_f32(to_bf16(v)) : v;
    }
    return *this;
  }
  double error() { return nmse(std::span<const float>(f.data(), d.size()), d); }
  double largest() const {
    double top = 0;
    for (const double v : d) top = std::max(top, std::abs(v));
    return top;
  }
  double largest_error() {
    double top = 0;
    for (size_t i = 0; i < d.size(); ++i) top = std::isnan(f[i]) ? INFINITY : std::max(top, std::abs(f[i] - d[i]));
    return top;
  }
  Guarded<float> f;
  std::vector<double> d;
  Mat<float> cpu;
  Mat<double> ref;
};

// 10 ulp or so per value: verbs that only move or scale.
constexpr double kTight = 1e-12;
// int8 activations: step/√12 of about 1/50 standard deviations gives 4e-5 for normal data.
constexpr double kInt8 = 1e-4;
// Two planes: the second one's step is 1/256 of the first one's, so 4e-5/256², plus f32 sums.
constexpr double kInt8Fine = 2e-9;

TEST_P(Verbs, RunTheIsaThatWasAsked) {
  EXPECT_STREQ(cpu.isa(), k.isa);
}

TEST_P(Verbs, EmbedGatherAndNorms) {
  for (const auto format : {Linear::Format::kBf16, Linear::Format::kAffine8, Linear::Format::kAffine4}) {
    const RandomLinear table(random, format, 50, 192);
    const int32_t ids[] = {49, 0, 7, 7, 3};
    Twin x(5, 192), y(5, 192), h(5, 192), picked(2, 192);
    cpu.embed(table.linear, ids, x.cpu);
    ref.embed(table.linear, ids, x.ref);
    EXPECT_LE(x.error(), kTight);
    const auto gamma = normals(random, 192);
    cpu.rmsnorm(x.cpu, gamma, h.cpu);
    ref.rmsnorm(x.ref, gamma, h.ref);
    EXPECT_LE(h.error(), kTight);
    y.randomise(random);
    cpu.add_rmsnorm(x.cpu, y.cpu, gamma, h.cpu);
    ref.add_rmsnorm(x.ref, y.ref, gamma, h.ref);
    EXPECT_LE(x.error(), kTight);
    EXPECT_LE(h.error(), kTight);
    cpu.add(x.cpu, y.cpu);
    ref.add(x.ref, y.ref);
    EXPECT_LE(x.error(), kTight);
    const int32_t rows[] = {4, 1};
    cpu.gather(x.cpu, rows, picked.cpu);
    ref.gather(x.ref, rows, picked.ref);
    EXPECT_LE(picked.error(), kTight);
  }
}

TEST_P(Verbs, ProjectSeveralMatrices) {
  for (const int rows : {1, 2, 3, 4, 17, kFineRows, kFineRows + 1, 129}) {
    for (const auto format : {Linear::Format::kBf16, Linear::Format::kAffine8, Linear::Format::kAffine4}) {
      const RandomLinear a(random, format, 200, 192), b(random, format, 32, 192),
          c(random, Linear::Format::kBf16, 65, 192);
      Twin x(rows, 192), ya(rows, 200), yb(rows, 32), yc(rows, 65);
      x.randomise(random);
      cpu.project(x.cpu, {&a.linear, &b.linear, &c.linear}, {ya.cpu, yb.cpu, yc.cpu});
      ref.project(x.ref, {&a.linear, &b.linear, &c.linear}, {ya.ref, yb.ref, yc.ref});
      EXPECT_LE(ya.error(), format == Linear::Format::kAffine4 ? kInt8Fine : kTight) << rows;
      EXPECT_LE(yb.error(), kTight) << "narrow products keep f32";
      EXPECT_LE(yc.error(), kTight);
    }
  }
  Twin none(0, 192), out(0, 200);
  const RandomLinear a(random, Linear::Format::kAffine4, 200, 192);
  cpu.project(none.cpu, {&a.linear}, {out.cpu});
}

TEST_P(Verbs, GatedNorm) {
  Twin o(7, 512), z(7, 512);
  o.randomise(random);
  z.randomise(random, 3);
  const auto gamma = normals(random, kGdnDim);
  cpu.gated_rmsnorm(o.cpu, z.cpu, gamma, o.cpu);
  ref.gated_rmsnorm(o.ref, z.ref, gamma, o.ref);
  EXPECT_LE(o.error(), kTight);
}

TEST_P(Verbs, RopeIsAccurateAtFarPositions) {
  const auto q_norm = normals(random, kHeadDim), k_norm = normals(random, kHeadDim);
  // No pages are touched, so positions may be anything. The second round finds the angles of the first in place of its
  // own.
  for (const int shift : {0, 1}) {
    const int counts[] = {5, 1, 3}, positions[] = {0, 262143 - shift, 1000};
    Both b;
    sequences(3);
    for (int s = 0; s < 3; ++s) {
      b.cpu_runs.push_back({&pairs[s]->cpu, b.rows, counts[s], positions[s]});
      b.ref_runs.push_back({&pairs[s]->ref, b.rows, counts[s], positions[s]});
      b.rows += counts[s];
    }
    b.cpu.runs = b.cpu_runs;
    b.ref.runs = b.ref_runs;
    Twin qg(b.rows, config.heads * 2 * kHeadDim), key(b.rows, config.kv_heads * kHeadDim);
    qg.randomise(random);
    key.randomise(random);
    cpu.norm_rope(qg.cpu, key.cpu, q_norm, k_norm, b.cpu);
    ref.norm_rope(qg.ref, key.ref, q_norm, k_norm, b.ref);
    EXPECT_LE(qg.error(), kTight);
    EXPECT_LE(key.error(), kTight);
  }
}

// Prompts in pieces across page borders, then single tokens over long contexts (pages split into parts), several
// sequences at once.
TEST_P(Verbs, Attend) {
  const int layer = 3;
  std::vector<int> positions = {0, 0, 0};
  const std::vector<std::vector<int>> passes = {{60, 1, 70}, {9, 63, 1}, {1, 1, 90},
                                                {90, 1, 1},  {64, 1, 4}, {30, 1, 1}};
  for (int round = 0; round < 9; ++round) {
    const bool alone = round >= 6;  // one sequence only: enough pages for parts
    const std::vector<int> counts = alone ? std::vector<int>{round == 8 ? 3 : round == 7 ? 1 : 65} : passes[round];
    const auto b = batch(counts, {positions.data(), counts.size()});
    Twin qg(b.rows, config.heads * 2 * kHeadDim), key(b.rows, config.kv_heads * kHeadDim),
        v(b.rows, config.kv_heads * kHeadDim), o(b.rows, config.heads * kHeadDim);
    qg.randomise(random);
    key.randomise(random, 1, true);  // bf16 values: what the pages hold is exact
    v.randomise(random, 1, true);
    cpu.attend(qg.cpu, key.cpu, v.cpu, b.cpu, layer, o.cpu);
    ref.attend(qg.ref, key.ref, v.ref, b.ref, layer, o.ref);
    // Scores err by 68u·Σ|q||k|/16, about 68u·10; weights by e to twice that; the sums over T positions by T·u at most.
    const double tolerance = (1400 + positions[0] + counts[0]) * kUlp * v.largest();
    EXPECT_LE(o.largest_error(), tolerance) << round;
    EXPECT_LE(o.error(), 1e-11);
    for (size_t s = 0; s < counts.size(); ++s) positions[s] += counts[s];
  }
  // 16 pages and more, so that a lone token is split. What lies before is written straight into the pages.
  int position = 1100;
  ASSERT_TRUE(pairs[0]->cpu.reserve(0, position) && pairs[0]->ref.reserve(0, position));
  for (int page = 0; page * kPage < position; ++page) {
    for (const int which : {0, 1}) {
      for (int head = 0; head < config.kv_heads; ++head) {
        bf16* cpu_kv = pairs[0]->cpu.kv(layer, page, which, head);
        double* ref_kv = pairs[0]->ref.kv(layer, page, which, head);
        for (int i = 0; i < kPage * kHeadDim; ++i) {
          cpu_kv[i] = to_bf16(static_cast<float>(random.normal()));
          ref_kv[i] = to_f32(cpu_kv[i]);
        }
      }
    }
  }
  for (const int count : {1, 5, 31}) {
    ASSERT_GT(page_parts(config.kv_heads, position / kPage), 1);
    const int counts[] = {count}, at[] = {position};
    const auto b = batch(counts, at);
    Twin qg(count, config.heads * 2 * kHeadDim), key(count, config.kv_heads * kHeadDim),
        v(count, config.kv_heads * kHeadDim), o(count, config.heads * kHeadDim);
    qg.randomise(random);
    key.randomise(random, 1, true);
    v.randomise(random, 1, true);
    cpu.attend(qg.cpu, key.cpu, v.cpu, b.cpu, layer, o.cpu);
    ref.attend(qg.ref, key.ref, v.ref, b.ref, layer, o.ref);
    EXPECT_LE(o.largest_error(), (1400 + position) * kUlp * v.largest()) << count;
    position += count;
  }
}

TEST_P(Verbs, ConvolutionAcrossSplits) {
  const int channels = config.conv_channels(), layer = 1;
  const auto taps = normals(random, size_t(channels) * kConvTaps);
  std::vector<int> positions = {0, 0};
  for (const auto& counts : std::vector<std::vector<int>>{{1, 5}, {2, 1}, {3, 1}, {4, 1}, {1, 66}}) {
    const auto b = batch(counts, positions);
    Twin u(b.rows, channels);
    u.randomise(random);
    cpu.conv_silu(u.cpu, taps, b.cpu, layer);
    ref.conv_silu(u.ref, taps, b.ref, layer);
    EXPECT_LE(u.error(), kTight);
    for (size_t s = 0; s < counts.size(); ++s) {
      positions[s] += counts[s];
      EXPECT_LE(nmse(pairs[s]->cpu.window_all(), pairs[s]->ref.window_all()), kTight);
    }
  }
}

// Lengths around every block size with carried state; decays from 1 down to 1e-12 and below.
TEST_P(Verbs, DeltaRuleAtEveryLength) {
  const int layer = 2;
  std::vector<float> A_log = {0.5f, 3.0f, -6.0f, 4.9f}, dt_bias = {1, 2, -3, 5};
  int position = 0;
  for (const int count : {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 130, 1}) {
    const int counts[] = {count, 2}, positions[] = {position, 2 * position};
    const auto b = batch(counts, positions);
    Twin qkv(b.rows, config.conv_channels()), a(b.rows, config.v_heads), beta(b.rows, config.v_heads),
        o(b.rows, config.v_heads * kGdnDim);
    qkv.randomise(random);
    a.randomise(random, 2);
    beta.randomise(random, 2);
    if (count == 5) {  // zero keys and queries: the epsilon keeps them finite
      std::fill_n(qkv.f.begin(), qkv.f.size() / 2, 0.0f);
      std::copy_n(qkv.f.begin(), qkv.d.size(), qkv.d.begin());
    }
    cpu.delta_rule(qkv.cpu, a.cpu, beta.cpu, A_log, dt_bias, b.cpu, layer, o.cpu);
    ref.delta_rule(qkv.ref, a.ref, beta.ref, A_log, dt_bias, b.ref, layer, o.ref);
    EXPECT_LE(o.error(), 1e-11) << count;
    for (const auto& p : pairs) EXPECT_LE(nmse(p->cpu.recurrent_all(), p->ref.recurrent_all()), 1e-11) << count;
    position += count;
  }
}

// Weights of one layer's experts.
struct Experts {
  Experts(Random& random, const ModelConfig& c, Linear::Format format, Linear::Format router_format) {
    const auto make = [&](Linear::Format f, int out, int in, double scale = 0.05) {
      owned.push_back(std::make_unique<RandomLinear>(random, f, out, in, scale));
      return owned.back()->linear;
    };
    moe.router = make(router_format, c.experts, c.hidden);
    moe.shared_gate = make(router_format, 1, c.hidden);
    moe.top_k = c.top_k;
    for (int e = 0; e < c.experts; ++e) {
      moe.experts.push_back({make(format, c.expert_width, c.hidden), make(format, c.expert_width, c.hidden),
                             make(format, c.hidden, c.expert_width)});
    }
    moe.shared = {make(format, c.shared_width, c.hidden), make(format, c.shared_width, c.hidden),
                  make(format, c.hidden, c.shared_width)};
  }
  std::vector<std::unique_ptr<RandomLinear>> owned;
  Moe moe;
};

TEST_P(Verbs, MoeAgreesWithTheReference) {
  for (const auto format : {Linear::Format::kAffine4, Linear::Format::kBf16, Linear::Format::kAffine8}) {
    const Experts experts(random, config, format, format == Linear::Format::kBf16 ? format : Linear::Format::kAffine8);
    for (const int rows : {1, 2, 3, 9, 40, kFineRows, kFineRows + 1, 150}) {
      Twin x(rows, config.hidden), y(rows, config.hidden);
      x.randomise(random);
      cpu.moe(x.cpu, experts.moe, y.cpu);
      ref.moe(x.ref, experts.moe, y.ref);
      // Three products in a row with int8 inputs: gate, up (which multiply) and down.
      const double int8 = gate_up_planes(rows) == 2 ? kInt8Fine : kInt8;
      EXPECT_LE(y.error(), format == Linear::Format::kAffine4 ? 4 * int8 : 1e-11) << rows;
    }
  }
}

TEST_P(Verbs, EqualRouterLogitsTakeTheLowerExperts) {
  Experts experts(random, config, Linear::Format::kBf16, Linear::Format::kBf16);
  std::ranges::fill(experts.owned[0]->weight_bytes(),
                    uint8_t{0});  // the router: all logits are 0, experts 0, 1 and 2 are due
  for (const int rows : {1, 5}) {
    Twin x(rows, config.hidden), y(rows, config.hidden);
    x.randomise(random);
    cpu.moe(x.cpu, experts.moe, y.cpu);
    ref.moe(x.ref, experts.moe, y.ref);
    EXPECT_LE(y.error(), 1e-11);
  }
}

TEST_P(Verbs, ZeroInputGivesZero) {
  const Experts experts(random, config, Linear::Format::kAffine4, Linear::Format::kAffine8);
  Twin x(3, config.hidden), y(3, config.hidden);
  std::ranges::fill(x.f, 0.0f);
  cpu.moe(x.cpu, experts.moe, y.cpu);
  for (const float v : y.f) EXPECT_EQ(v, 0);
}

// ---- whole passes

struct SmallModel {
  SmallModel(Random& random, ModelConfig c, Linear::Format format) {
    w.config = c;
    const auto make = [&](Linear::Format f, int out, int in, double scale = 0.07) {
      owned.push_back(std::make_unique<RandomLinear>(random, f, out, in, scale));
      return owned.back()->linear;
    };
    const auto near_one = [&](int n) {
      auto v = normals(random, n, 0.1);
      for (float& x : v) x += 1;
      return v;
    };
    w.tokens = make(format, c.vocab, c.hidden, 1);
    w.head = make(format, c.vocab, c.hidden);
    w.norm = near_one(c.hidden);
    for (int l = 0; l < c.layers; ++l) {
      Layer layer;
      layer.attends = c.attends[l];
      layer.norm1 = near_one(c.hidden);
      layer.norm2 = near_one(c.hidden);
      if (layer.attends) {
        layer.attn = {make(format, c.heads * 2 * kHeadDim, c.hidden),
                      make(format, c.kv_heads * kHeadDim, c.hidden),
                      make(format, c.kv_heads * kHeadDim, c.hidden),
                      make(format, c.hidden, c.heads * kHeadDim),
                      near_one(kHeadDim),
                      near_one(kHeadDim)};
      } else {
        layer.gdn = {make(format, c.conv_channels(), c.hidden),
                     make(format, c.v_heads * kGdnDim, c.hidden),
                     make(format, c.v_heads, c.hidden),
                     make(format, c.v_heads, c.hidden),
                     make(format, c.hidden, c.v_heads * kGdnDim),
                     normals(random, size_t(c.conv_channels()) * kConvTaps, 0.5),
                     normals(random, c.v_heads),
                     normals(random, c.v_heads),
                     near_one(kGdnDim)};
      }
      experts.emplace_back(random, c, format, format == Linear::Format::kAffine4 ? Linear::Format::kAffine8 : format);
      layer.moe = experts.back().moe;
      w.layers.push_back(std::move(layer));
    }
  }
  std::vector<std::unique_ptr<RandomLinear>> owned;
  std::vector<Experts> experts;
  Weights w;
};

class WholePass : public EveryTable {
 protected:
  // Feeds each sequence its tokens, `chunks[i]` of them in pass i; returns all logits, one vector a sequence, and the
  // recurrent states.
  template <class O>
  std::vector<std::vector<double>> run(O& op, const SmallModel& model, const std::vector<std::vector<int32_t>>& texts,
                                       std::span<const int> chunks) {
    using State = typename O::State;
    using Kv = std::remove_pointer_t<decltype(std::declval<const State&>().kv(0, 0, 0, 0))>;
    const StateShape shape(model.w.config);
    PagePool<Kv> pages(shape.page_size(), 100);
    HostScratch<typename O::Real> scratch(model.w.config, kMaxRows, kMaxRows);
    std::vector<State> states;
    for (size_t s = 0; s < texts.size(); ++s) states.emplace_back(shape, pages);
    std::vector<std::vector<double>> logits(texts.size());
    int done = 0;
    for (const int chunk : chunks) {
      std::vector<int32_t> ids, wanted;
      std::vector<calla::Run<State>> runs;
      for (size_t s = 0; s < texts.size(); ++s) {
        EXPECT_TRUE(states[s].reserve(done, done + chunk));
        runs.push_back({&states[s], static_cast<int>(ids.size()), chunk, done});
        ids.insert(ids.end(), texts[s].begin() + done, texts[s].begin() + done + chunk);
      }
      for (size_t i = 0; i < ids.size(); ++i) wanted.push_back(static_cast<int32_t>(i));
      scratch.resize(static_cast<int>(ids.size()), static_cast<int>(wanted.size()));
      forward(op, model.w, Batch<State>{ids, runs, wanted}, scratch);
      for (size_t s = 0; s < texts.size(); ++s) {
        for (int i = 0; i < chunk; ++i) {
          const auto row = scratch.logits[runs[s].row + i];
          logits[s].insert(logits[s].end(), row.begin(), row.end());
        }
      }
      done += chunk;
    }
    return logits;
  }
  std::vector<std::vector<int32_t>> texts(const ModelConfig& c, int count, int length) {
    std::vector<std::vector<int32_t>> all(count, std::vector<int32_t>(length));
    for (auto& text : all) {
      for (int32_t& id : text) id = static_cast<int32_t>(random.below(c.vocab));
    }
    return all;
  }
};
CALLA_EVERY_TABLE(WholePass);

TEST_P(WholePass, AgreesWithTheReferenceInBf16) {
  const SmallModel model(random, small_config(), Linear::Format::kBf16);
  Pool pool(2);
  CpuOps cpu(model.w.config, pool, k, kMaxRows);
  ReferenceOps ref(model.w.config);
  const auto text = texts(model.w.config, 1, 80);
  const int chunks[] = {70, 1, 1, 8};
  // Keys and values in bf16 (2^-9 each) are what is left.
  EXPECT_LE(nmse(run(cpu, model, text, chunks)[0], run(ref, model, text, chunks)[0]), 1e-6);
}

TEST_P(WholePass, AgreesWithTheReferenceInFourBits) {
  ModelConfig config = small_config();
  config.top_k = config.experts = 4;  // all are chosen, so that rounding cannot change the choice
  const SmallModel model(random, config, Linear::Format::kAffine4);
  Pool pool(2);
  CpuOps cpu(model.w.config, pool, k, kMaxRows);
  ReferenceOps ref(model.w.config);
  const auto text = texts(model.w.config, 1, 40);
  const int chunks[] = {30, 1, 2, 7};
  EXPECT_LE(nmse(run(cpu, model, text, chunks)[0], run(ref, model, text, chunks)[0]), 2e-3);
}

TEST_P(WholePass, SplitsOfAPromptAgree) {
  const SmallModel model(random, small_config(), Linear::Format::kBf16);
  Pool pool(1);
  CpuOps cpu(model.w.config, pool, k, kMaxRows);
  const auto text = texts(model.w.config, 1, 67);
  const int whole[] = {67};
  const auto want = run(cpu, model, text, whole);
  for (const int at : {1, 2, 3, 4, 5, 33, 63, 64, 65, 66}) {
    const int chunks[] = {at, 67 - at};
    EXPECT_LE(nmse(run(cpu, model, text, chunks)[0], want[0]), 1e-7) << at;
  }
}

TEST_P(WholePass, ThreadsAndOrderDoNotChangeABit) {
  for (const auto format : {Linear::Format::kAffine4, Linear::Format::kBf16}) {
    const SmallModel model(random, small_config(), format);
    auto text = texts(model.w.config, 3, 30);
    const int chunks[] = {25, 1, 1, 3};
    std::optional<std::vector<std::vector<double>>> want;
    for (const int threads : {1, 2, 3}) {
      Pool pool(threads);
      CpuOps cpu(model.w.config, pool, k, kMaxRows);
      const auto got = run(cpu, model, text, chunks);
      if (!want) want = got;
      EXPECT_TRUE(got == *want) << threads << " threads";
    }
    std::swap(text[0], text[2]);
    std::swap(text[0], text[1]);
    Pool pool(2);
    CpuOps cpu(model.w.config, pool, k, kMaxRows);
    const auto got = run(cpu, model, text, chunks);
    EXPECT_TRUE(got[0] == (*want)[1] && got[1] == (*want)[2] && got[2] == (*want)[0]);
  }
}

}  // namespace
}  // namespace calla::testing
