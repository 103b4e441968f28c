// Two ways to write the gated delta rule, and the verb that the page calls, must be one function.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/reference/delta_chunked.h"
#include "backend/reference/ops_reference.h"
#include "base/random.h"

namespace calla {
namespace {

struct Inputs {
  Inputs(int count, uint64_t seed, double strongest) : n(count), q(count * kGdnDim), k(q), v(q), g(count), beta(count) {
    Random random(seed);
    for (auto* m : {&q, &k, &v}) {
      for (double& x : *m) x = random.normal();
    }
    for (int i = 0; i < n; ++i) {
      normalise(&k[i * kGdnDim], 1);
      normalise(&q[i * kGdnDim], 1 / std::sqrt(double{kGdnDim}));
      g[i] = strongest * std::pow(random.uniform(), 4);
      beta[i] = random.uniform();
    }
  }
  static void normalise(double* x, double scale) {
    double sum = 0;
    for (int d = 0; d < kGdnDim; ++d) sum += x[d] * x[d];
    for (int d = 0; d < kGdnDim; ++d) x[d] *= scale / std::sqrt(sum);
  }
  Mat<const double> rows(const std::vector<double>& m, int first, int count) const {
    return {m.data() + first * kGdnDim, count, kGdnDim};
  }
  int n;
  std::vector<double> q, k, v, g, beta;
};

// The recurrence as the paper has it.
void scan(const Inputs& in, std::vector<double>& S, std::vector<double>& o) {
  for (int i = 0; i < in.n; ++i) {
    const double *q = &in.q[i * kGdnDim], *k = &in.k[i * kGdnDim], *v = &in.v[i * kGdnDim];
    for (double& s : S) s *= std::exp(in.g[i]);
    for (int j = 0; j < kGdnDim; ++j) {
      double recalled = 0;
      for (int d = 0; d < kGdnDim; ++d) recalled += S[d * kGdnDim + j] * k[d];
      for (int d = 0; d < kGdnDim; ++d) S[d * kGdnDim + j] += k[d] * in.beta[i] * (v[j] - recalled);
      o[i * kGdnDim + j] = 0;
      for (int d = 0; d < kGdnDim; ++d) o[i * kGdnDim + j] += S[d * kGdnDim + j] * q[d];
    }
  }
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double top = 0;
  for (size_t i = 0; i < a.size(); ++i)
    top = std::isfinite(a[i] - b[i]) ? std::max(top, std::abs(a[i] - b[i])) : INFINITY;
  return top;
}

TEST(DeltaRule, ChunksOfAnySizeEqualTheRecurrence) {
  // Log decays down to −28 (alpha = 1e-12) and −1000 (alpha = 0): what lies before such a token is forgotten, and
  // nothing may overflow.
  for (const double strongest : {0.0, -0.1, -28.0, -1000.0}) {
    for (const int n : {1, 2, 3, 63, 64, 65, 127, 128, 130}) {
      const Inputs in(n, 7 * n, strongest);
      Random random(n);
      std::vector<double> start(kGdnDim * kGdnDim);
      for (double& s : start) s = random.normal();
      std::vector<double> S = start, o(n * kGdnDim);
      scan(in, S, o);
      for (const int chunk : {1, 5, 64, 200}) {
        std::vector<double> S2 = start, o2(n * kGdnDim);
        const Mat<double> state(S2.data(), kGdnDim, kGdnDim);
        for (int i = 0; i < n; i += chunk) {
          const int count = std::min(chunk, n - i);
          delta_chunked(in.rows(in.q, i, count), in.rows(in.k, i, count), in.rows(in.v, i, count),
                        std::span(in.g).subspan(i, count), std::span(in.beta).subspan(i, count), state,
                        {o2.data() + i * kGdnDim, count, kGdnDim});
        }
        EXPECT_LE(largest_difference(o, o2), 1e-11) << "n " << n << ", chunk " << chunk << ", decay " << strongest;
        EXPECT_LE(largest_difference(S, S2), 1e-11) << "n " << n << ", chunk " << chunk << ", decay " << strongest;
      }
    }
  }
}

// The verb, from raw projections: two value heads on one key head, state carried over two runs of a sequence.
TEST(DeltaRule, TheVerbIsTheRecurrence) {
  ModelConfig config;
  config.layers = 1;
  config.attends = {false};
  config.k_heads = 1;
  config.v_heads = 2;
  config.kv_heads = 1;
  ReferenceOps op(config);
  const int n = 30, width = 4 * kGdnDim;
  Random random(3);
  std::vector<double> qkv(n * width), a(n * 2), b(n * 2), out(n * 2 * kGdnDim);
  for (auto* m : {&qkv, &a, &b}) {
    for (double& x : *m) x = random.normal();
  }
  const std::vector<float> A_log{1.5f, -2.0f}, dt_bias{0.5f, -1.0f};
  const StateShape shape(config);
  PagePool<double> pool(1, 1);
  HostState<double, double> state(shape, pool);
  for (const auto& [first, count] : {std::pair{0, 13}, std::pair{13, 17}}) {
    const calla::Run<HostState<double, double>> run{&state, 0, count, first};
    const auto rows = [&](std::vector<double>& m, int cols) {
      return Mat<double>(m.data() + first * cols, count, cols);
    };
    op.delta_rule(rows(qkv, width), rows(a, 2), rows(b, 2), A_log, dt_bias, {{}, {&run, 1}, {}}, 0,
                  rows(out, 2 * kGdnDim));
  }
  for (int h = 0; h < 2; ++h) {
    Inputs in(n, 1, 0);
    for (int i = 0; i < n; ++i) {
      for (int d = 0; d < kGdnDim; ++d) {
        in.q[i * kGdnDim + d] = qkv[i * width + d];
        in.k[i * kGdnDim + d] = qkv[i * width + kGdnDim + d];
        in.v[i * kGdnDim + d] = qkv[i * width + (2 + h) * kGdnDim + d];
      }
      Inputs::normalise(&in.q[i * kGdnDim], 1 / std::sqrt(double{kGdnDim}));
      Inputs::normalise(&in.k[i * kGdnDim], 1);
      in.g[i] = -std::exp(double{A_log[h]}) * std::log1p(std::exp(a[i * 2 + h] + dt_bias[h]));
      in.beta[i] = 1 / (1 + std::exp(-b[i * 2 + h]));
    }
    std::vector<double> S(kGdnDim * kGdnDim), o(n * kGdnDim);
    scan(in, S, o);
    for (int i = 0; i < n; ++i) {
      for (int d = 0; d < kGdnDim; ++d) EXPECT_NEAR(out[i * 2 * kGdnDim + h * kGdnDim + d], o[i * kGdnDim + d], 1e-5);
    }
  }
}

}  // namespace
}  // namespace calla
