#include "backend/reference/ops_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace calla {
namespace {

double sigmoid(double t) {
  return 1 / (1 + std::exp(-t));
}
double silu(double t) {
  return t * sigmoid(t);
}
double softplus(double t) {
  return t > 0 ? t + std::log1p(std::exp(-t)) : std::log1p(std::exp(t));
}

double dot(std::span<const double> a, std::span<const double> b) {
  return std::transform_reduce(a.begin(), a.end(), b.begin(), 0.0);
}

// (mean(x²) + eps)^-½
double inverse_rms(std::span<const double> x, double eps) {
  return 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + eps);
}

// Rows of their own.
struct Rows {
  Rows(size_t rows, int cols) : values(rows * cols), matrix(values.data(), static_cast<int>(rows), cols) {}
  std::vector<double> values;
  Mat<double> matrix;
};

}  // namespace

void ReferenceOps::embed(const Linear& w, std::span<const int32_t> ids, Matrix x) {
  for (int i = 0; i < x.rows; ++i) dequantize_row<double>(w, ids[i], x[i]);
}

void ReferenceOps::rmsnorm(Matrix x, Vec gamma, Matrix y) {
  for (int i = 0; i < x.rows; ++i) {
    const double scale = inverse_rms(x[i], config_.norm_eps);
    for (int c = 0; c < x.cols; ++c) y[i][c] = x[i][c] * scale * gamma[c];
  }
}

void ReferenceOps::add_rmsnorm(Matrix x, Matrix y, Vec gamma, Matrix h) {
  add(x, y);
  rmsnorm(x, gamma, h);
}

void ReferenceOps::add(Matrix x, Matrix y) {
  for (int i = 0; i < x.rows; ++i) {
    for (int c = 0; c < x.cols; ++c) x[i][c] += y[i][c];
  }
}

void ReferenceOps::project(Matrix x, std::initializer_list<const Linear*> w, std::initializer_list<Matrix> y) {
  std::vector<double> row(x.cols);
  for (size_t j = 0; j < w.size(); ++j) {
    const Linear& matrix = *w.begin()[j];
    const Matrix out = y.begin()[j];
    for (int r = 0; r < matrix.out; ++r) {
      dequantize_row<double>(matrix, r, row);
      for (int i = 0; i < x.rows; ++i) out[i][r] = dot(row, x[i]);
    }
  }
}

void ReferenceOps::gather(Matrix x, std::span<const int32_t> rows, Matrix y) {
  for (size_t i = 0; i < rows.size(); ++i) std::ranges::copy(x[rows[i]], y.row(static_cast<int>(i)));
}

void ReferenceOps::norm_rope(Matrix qg, Matrix k, Vec q_norm, Vec k_norm, const Batch<State>& b) {
  const auto one_head = [&](double* head, Vec gamma, int position) {
    const std::span<double> x(head, kHeadDim);
    const double scale = inverse_rms(x, config_.norm_eps);
    for (int i = 0; i < kHeadDim; ++i) x[i] *= scale * gamma[i];
    for (int j = 0; j < kRotary / 2; ++j) {
      const double angle = position * std::pow(config_.rope_theta, -2.0 * j / kRotary);
      const double c = std::cos(angle), s = std::sin(angle);
      const double lo = x[j], hi = x[j + kRotary / 2];
      x[j] = lo * c - hi * s;
      x[j + kRotary / 2] = hi * c + lo * s;
    }
  };
  for (const auto& run : b.runs) {
    for (int i = 0; i < run.count; ++i) {
      for (int h = 0; h < config_.heads; ++h)
        one_head(qg.row(run.row + i) + h * 2 * kHeadDim, q_norm, run.position + i);
      for (int h = 0; h < config_.kv_heads; ++h) one_head(k.row(run.row + i) + h * kHeadDim, k_norm, run.position + i);
    }
  }
}

void ReferenceOps::attend(Matrix qg, Matrix k, Matrix v, const Batch<State>& b, int layer, Matrix o) {
  for (const auto& run : b.runs) {
    const auto cached = [&](int which, int head, int position) {
      return std::span<double>(run.state->kv(layer, position / kPage, which, head) + position % kPage * kHeadDim,
                               kHeadDim);
    };
    for (int i = 0; i < run.count; ++i) {
      for (int h = 0; h < config_.kv_heads; ++h) {
        std::ranges::copy(k[run.row + i].subspan(h * kHeadDim, kHeadDim), cached(0, h, run.position + i).begin());
        std::ranges::copy(v[run.row + i].subspan(h * kHeadDim, kHeadDim), cached(1, h, run.position + i).begin());
      }
    }
    for (int i = 0; i < run.count; ++i) {
      const int length = run.position + i + 1;
      std::vector<double> p(length);
      for (int h = 0; h < config_.heads; ++h) {
        const int kv_head = h * config_.kv_heads / config_.heads;
        const std::span<const double> q(qg.row(run.row + i) + h * 2 * kHeadDim, kHeadDim);
        const std::span<const double> gate(q.data() + kHeadDim, kHeadDim);
        for (int t = 0; t < length; ++t) p[t] = dot(q, cached(0, kv_head, t)) / std::sqrt(double{kHeadDim});
        const double top = *std::ranges::max_element(p);
        for (double& s : p) s = std::exp(s - top);
        const double total = std::accumulate(p.begin(), p.end(), 0.0);
        for (int d = 0; d < kHeadDim; ++d) {
          double sum = 0;
          for (int t = 0; t < length; ++t) sum += p[t] * cached(1, kv_head, t)[d];
          o[run.row + i][h * kHeadDim + d] = sum / total * sigmoid(gate[d]);
        }
      }
    }
  }
}

void ReferenceOps::conv_silu(Matrix qkv, Vec conv, const Batch<State>& b, int layer) {
  constexpr int kPast = kConvTaps - 1;
  const int channels = qkv.cols;
  for (const auto& run : b.runs) {
    double* window = run.state->window(layer);
    for (int c = 0; c < channels; ++c) {
      std::vector<double> u;  // three inputs before the run, then the run's
      for (int j = 0; j < kPast; ++j) u.push_back(window[j * channels + c]);
      for (int i = 0; i < run.count; ++i) u.push_back(qkv[run.row + i][c]);
      for (int i = 0; i < run.count; ++i) {
        double sum = 0;
        for (int j = 0; j < kConvTaps; ++j) sum += conv[c * kConvTaps + j] * u[i + j];
        qkv[run.row + i][c] = silu(sum);
      }
      for (int j = 0; j < kPast; ++j) window[j * channels + c] = u[run.count + j];
    }
  }
}

void ReferenceOps::delta_rule(Matrix qkv, Matrix a, Matrix beta, Vec A_log, Vec dt_bias, const Batch<State>& b,
                              int layer, Matrix o) {
  const int key_width = config_.k_heads * kGdnDim;
  // MLX normalises with rms_norm (eps 1e-6), so eps on Σx² is 128·1e-6.
  const auto unit = [](std::span<const double> x) {
    const double scale = 1 / std::sqrt(dot(x, x) + kGdnDim * 1e-6);
    std::vector<double> y(x.begin(), x.end());
    for (double& t : y) t *= scale;
    return y;
  };
  for (const auto& run : b.runs) {
    for (int i = 0; i < run.count; ++i) {
      const int row = run.row + i;
      for (int h = 0; h < config_.v_heads; ++h) {
        const int k_head = h * config_.k_heads / config_.v_heads;
        const std::vector<double> q = unit(qkv[row].subspan(k_head * kGdnDim, kGdnDim));
        const std::vector<double> k = unit(qkv[row].subspan(key_width + k_head * kGdnDim, kGdnDim));
        const std::span<const double> v = qkv[row].subspan(2 * key_width + h * kGdnDim, kGdnDim);
        const double alpha = std::exp(-std::exp(double{A_log[h]}) * softplus(a[row][h] + dt_bias[h]));
        const double b_t = sigmoid(beta[row][h]);
        double* S = run.state->recurrent(layer, h);
        for (int e = 0; e < kGdnDim * kGdnDim; ++e) S[e] *= alpha;
        for (int j = 0; j < kGdnDim; ++j) {
          double recalled = 0;
          for (int d = 0; d < kGdnDim; ++d) recalled += S[d * kGdnDim + j] * k[d];
          const double u = b_t * (v[j] - recalled);
          double out = 0;
          for (int d = 0; d < kGdnDim; ++d) {
            S[d * kGdnDim + j] += k[d] * u;
            out += S[d * kGdnDim + j] * q[d];
          }
          o[row][h * kGdnDim + j] = out / std::sqrt(double{kGdnDim});
        }
      }
    }
  }
}

void ReferenceOps::gated_rmsnorm(Matrix o, Matrix z, Vec gamma, Matrix y) {
  for (int i = 0; i < o.rows; ++i) {
    for (int h = 0; h < o.cols / kGdnDim; ++h) {
      const double scale = inverse_rms(o[i].subspan(h * kGdnDim, kGdnDim), config_.norm_eps);
      for (int d = 0; d < kGdnDim; ++d) {
        const int c = h * kGdnDim + d;
        y[i][c] = o[i][c] * scale * gamma[d] * silu(z[i][c]);
      }
    }
  }
}

void ReferenceOps::moe(Matrix x, const Moe& w, Matrix y) {
  const size_t experts = w.experts.size();
  Rows router(x.rows, w.router.out), shared_gate(x.rows, 1),
      p(x.rows, w.router.out + 1);  // p: weights, shared one last
  project(x, {&w.router, &w.shared_gate}, {router.matrix, shared_gate.matrix});
  for (int i = 0; i < x.rows; ++i) {
    const auto r = router.matrix[i];
    std::vector<int> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int l, int m) { return r[l] > r[m]; });
    order.resize(w.top_k);
    double total = 0;
    for (int e : order) total += std::exp(r[e] - r[order[0]]);
    for (int e : order) p.matrix[i][e] = std::exp(r[e] - r[order[0]]) / total;
    p.matrix[i][experts] = sigmoid(shared_gate.matrix[i][0]);
    std::ranges::fill(y[i], 0.0);
  }
  for (size_t e = 0; e <= experts; ++e) {
    const Mlp& mlp = e < experts ? w.experts[e] : w.shared;
    std::vector<int32_t> rows;
    for (int i = 0; i < x.rows; ++i) {
      if (p.matrix[i][e] > 0) rows.push_back(i);
    }
    if (rows.empty()) continue;
    Rows in(rows.size(), x.cols), gate(rows.size(), mlp.gate.out), up(rows.size(), mlp.up.out),
        out(rows.size(), y.cols);
    gather(x, rows, in.matrix);
    project(in.matrix, {&mlp.gate, &mlp.up}, {gate.matrix, up.matrix});
    for (size_t i = 0; i < gate.values.size(); ++i) gate.values[i] = silu(gate.values[i]) * up.values[i];
    project(gate.matrix, {&mlp.down}, {out.matrix});
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto sum = y[rows[i]];
      for (int c = 0; c < y.cols; ++c) sum[c] += p.matrix[rows[i]][e] * out.matrix[i][c];
    }
  }
}

}  // namespace calla
