// The delta net's kernels against the reference.

#include "backend/cuda/delta.h"

#include "tests/backend/cuda/sequences.h"

namespace calla::testing {
namespace {

constexpr double kF32 = 1e-11;  // a few hundred roundings of 2^-24 in a row, squared

ModelConfig config(int k_heads, int v_heads) {
  ModelConfig c;
  c.layers = 3;
  c.attends = {false, true, false};
  c.heads = c.kv_heads = 1;
  c.k_heads = k_heads;
  c.v_heads = v_heads;
  return c;
}

// Inputs of a pass, and what the reference makes of them.
struct Case {
  Case(Sequences& s, const ModelConfig& c, int rows)
      : m(rows),
        width(c.v_heads * kGdnDim),
        qkv(normals(s.random, size_t(rows) * c.conv_channels())),
        a(normals(s.random, size_t(rows) * c.v_heads, 2)),
        b(normals(s.random, size_t(rows) * c.v_heads, 2)),
        device_qkv(qkv),
        device_a(a),
        device_b(b),
        o(size_t(rows) * width) {}
  std::vector<double> want(const ModelConfig& c, const Batch<ReferenceOps::State>& batch, int layer,
                           const std::vector<float>& conv, const std::vector<float>& A_log,
                           const std::vector<float>& dt_bias) const {
    auto qkv64 = doubles(qkv), a64 = doubles(a), b64 = doubles(b);
    std::vector<double> out(size_t(m) * width);
    const Mat<double> inputs(qkv64.data(), m, c.conv_channels()), o_rows(out.data(), m, width);
    ReferenceOps ref(c);
    ref.conv_silu(inputs, conv, batch, layer);
    ref.delta_rule(inputs, {a64.data(), m, c.v_heads}, {b64.data(), m, c.v_heads}, A_log, dt_bias, batch, layer,
                   o_rows);
    return out;
  }
  int m, width;
  std::vector<float> qkv, a, b;
  DeviceArray<float> device_qkv, device_a, device_b, o;
};

struct Weights {
  Weights(Random& random, const ModelConfig& c)
      : conv(normals(random, size_t(c.conv_channels()) * kConvTaps, 0.5)),
        A_log(normals(random, c.v_heads)),
        dt_bias(normals(random, c.v_heads)),
        device_conv(conv),
        device_A_log(A_log),
        device_dt_bias(dt_bias) {
    A_log[0] = 4.9f;  // decays down to 1e-12 and below
    device_A_log.set(A_log);
  }
  cuda::DeltaWeights weights() const { return {device_conv.data(), device_A_log.data(), device_dt_bias.data()}; }
  std::vector<float> conv, A_log, dt_bias;
  DeviceArray<float> device_conv, device_A_log, device_dt_bias;
};

// One token after another, from nothing: the window's ring goes round, and both layers keep apart.
TEST(CudaDelta, StepByStep) {
  for (const auto& [k_heads, v_heads] : {std::pair{2, 4}, {1, 1}, {1, 4}}) {
    const ModelConfig c = config(k_heads, v_heads);
    Sequences s(c, 3, 1, 5 * v_heads);
    const Weights w(s.random, c);
    int positions[3] = {};
    for (int step = 0; step < 14; ++step) {
      const int layer = step % 3 == 2 ? 2 : 0;
      if (layer == 2 && step > 2) continue;  // its window has other positions than layer 0's
      std::vector<Sequences::Rows> rows;
      for (const int i : {2, 0, 1}) {
        if (step % (i + 1) == 0) rows.push_back({i, 1, layer == 0 ? positions[i]++ : 0});
      }
      const int m = static_cast<int>(rows.size());
      Case t(s, c, m);
      const auto& runs = s.runs(rows);
      cuda::delta_step(nullptr, t.device_qkv.data(), t.device_a.data(), t.device_b.data(), w.weights(), runs.data(), m,
                       s.sizes, s.shape.slot[layer], t.o.data());
      const auto want = t.want(c, s.batch(), layer, w.conv, w.A_log, w.dt_bias);
      EXPECT_LE(nmse(t.o.get(), want), kF32) << "step " << step;
      for (const auto& r : rows)
        EXPECT_LE(nmse(s.recurrent(r.sequence).get(), s.ref(r.sequence).recurrent_all()), kF32) << "step " << step;
    }
  }
}

constexpr int kLargeShared = 227 << 10, kSmallShared = 99 << 10;

// One pass after another over the same sequences, by delta_pass. Returns the largest NMSE of outputs and states.
double worst_pass(Sequences& s, const ModelConfig& c, const Weights& w, int layer, int shared,
                  const std::vector<std::vector<int>>& passes) {
  double worst = 0;
  std::vector<int> positions(passes[0].size());
  for (const auto& counts : passes) {
    std::vector<Sequences::Rows> rows;
    int m = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      rows.push_back({static_cast<int>(i), counts[i], positions[i]});
      positions[i] += counts[i];
      m += counts[i];
    }
    Case t(s, c, m);
    const auto& runs = s.runs(rows);
    const int run_count = static_cast<int>(rows.size());
    DeviceArray<float> scratch(cuda::delta_pass_scratch(m, run_count, s.sizes));
    cuda::delta_pass(nullptr, t.device_qkv.data(), t.device_a.data(), t.device_b.data(), w.weights(), runs.data(),
                     run_count, m, s.sizes, s.shape.slot[layer], scratch.data(), t.o.data(), {shared, false, 132});
    worst = std::max(worst, nmse(t.o.get(), t.want(c, s.batch(), layer, w.conv, w.A_log, w.dt_bias)));
    for (const auto& r : rows)
      worst = std::max(worst, nmse(s.recurrent(r.sequence).get(), s.ref(r.sequence).recurrent_all()));
  }
  return worst;
}

// Each operand of the chunked form is rounded to f16, which errs by 2^-11/√3 in the mean; about eight such errors meet
// in an output. For heads that never forget, errors of all tokens meet in the state, as do the tokens themselves.
constexpr double kChunked = 1e-6;

TEST(CudaDelta, ShortRunsTokenByToken) {
  const ModelConfig c = config(2, 4);
  Sequences s(c, 3, 1, 21);
  const Weights w(s.random, c);
  EXPECT_LE(worst_pass(s, c, w, 2, kLargeShared, {{2, 1, 3}, {1, 4, 0}, {15, 1, 2}, {5, 14, 1}, {1, 1, 1}}), kF32);
}

// Runs around the edges of chunks, several in a pass with short ones among them, states carried from pass to pass.
TEST(CudaDelta, ChunksAtEveryLength) {
  for (const auto& [k_heads, v_heads] : {std::pair{2, 4}, {1, 1}, {1, 3}}) {
    for (const int shared : {kLargeShared, kSmallShared}) {
      const ModelConfig c = config(k_heads, v_heads);
      Sequences s(c, 3, 1, 31 * v_heads);
      const Weights w(s.random, c);
      EXPECT_LE(
          worst_pass(s, c, w, 0, shared,
                     {{16, 1, 63}, {17, 64, 2}, {1, 65, 66}, {0, 15, 127}, {128, 0, 129}, {130, 200, 1}, {1, 320, 1}}),
          kChunked)
          << v_heads << " heads, " << shared;
    }
  }
}

// A long prompt, for heads that forget at once, slowly and never: the error does not grow with the length.
TEST(CudaDelta, LongRuns) {
  const ModelConfig c = config(2, 4);
  Sequences s(c, 1, 1, 77);
  Weights w(s.random, c);
  w.A_log = {-12.0f, -5.0f, -1.0f, 3.0f};
  w.device_A_log.set(w.A_log);
  EXPECT_LE(worst_pass(s, c, w, 0, kLargeShared, {{4096}, {4096}}), kChunked);
}

TEST(CudaDelta, GatedNorm) {
  const ModelConfig c = config(1, 3);
  Random random(3);
  for (const int m : {1, 2, 7}) {
    const int width = c.v_heads * kGdnDim;
    const auto o = normals(random, size_t(m) * width), z = normals(random, size_t(m) * width, 3),
               gamma = normals(random, kGdnDim);
    const DeviceArray<float> device_o(o), device_z(z), device_gamma(gamma);
    const DeviceArray<__half> y(size_t(m) * width);
    cuda::gated_rmsnorm(nullptr, device_o.data(), device_z.data(), device_gamma.data(), c.norm_eps, m, c.v_heads,
                        y.data());
    auto o64 = doubles(o), z64 = doubles(z);
    const Mat<double> o_rows(o64.data(), m, width);
    ReferenceOps(c).gated_rmsnorm(o_rows, {z64.data(), m, width}, gamma, o_rows);
    const auto got = floats(y.get());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], o64[i], 0x1p-11 * std::abs(o64[i]) + 1e-6);
  }
}

}  // namespace
}  // namespace calla::testing
