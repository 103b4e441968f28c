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
  Case(Sequences& s, const ModelConfig& c, int rows, double decay = 1)
      : m(rows),
        width(c.v_heads * kGdnDim),
        qkv(normals(s.random, size_t(rows) * c.conv_channels())),
        a(normals(s.random, size_t(rows) * c.v_heads, 2)),
        b(normals(s.random, size_t(rows) * c.v_heads, 2)),
        device_qkv(qkv),
        device_a(a),
        device_b(b),
        o(size_t(rows) * width) {
    for (float& x : a) x *= static_cast<float>(decay);
    device_a.set(a);
  }
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
