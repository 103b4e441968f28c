#include "backend/reference/delta_chunked.h"

#include <cmath>
#include <vector>

#include "ops/dims.h"

namespace calla {
namespace {

using Square = std::vector<std::vector<double>>;

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// rowᵀ·S
std::vector<double> recall(std::span<const double> row, Mat<double> S) {
  std::vector<double> out(S.cols);
  for (int d = 0; d < S.rows; ++d) {
    for (int j = 0; j < S.cols; ++j) out[j] += row[d] * S[d][j];
  }
  return out;
}

}  // namespace

void delta_chunked(Mat<const double> q, Mat<const double> k, Mat<const double> v, std::span<const double> g,
                   std::span<const double> beta, Mat<double> S, Mat<double> o) {
  const int n = q.rows;
  if (n == 0) return;
  // G: log decay from the start of the chunk to after token i. Only differences G_i − G_j with i ≥ j are ever raised:
  // exp(−G) would overflow.
  std::vector<double> G(n);
  for (int i = 0; i < n; ++i) G[i] = (i > 0 ? G[i - 1] : 0) + g[i];
  const auto decay = [&](int i, int j) { return std::exp(G[i] - G[j]); };

  // What token i corrects, given the state before the chunk: (I + A) V' = beta·(V − e^G K S), A_ij = beta_i (k_i·k_j)
  // e^(G_i − G_j) for j < i.
  Square corrected(n);
  for (int i = 0; i < n; ++i) {
    corrected[i] = recall(k[i], S);
    for (int d = 0; d < kGdnDim; ++d) corrected[i][d] = beta[i] * (v[i][d] - std::exp(G[i]) * corrected[i][d]);
    for (int j = 0; j < i; ++j) {
      const double a = beta[i] * dot(k[i], k[j]) * decay(i, j);
      for (int d = 0; d < kGdnDim; ++d) corrected[i][d] -= a * corrected[j][d];
    }
  }
  for (int i = 0; i < n; ++i) {
    const std::vector<double> before = recall(q[i], S);
    for (int d = 0; d < kGdnDim; ++d) o[i][d] = std::exp(G[i]) * before[d];
    for (int j = 0; j <= i; ++j) {
      const double a = dot(q[i], k[j]) * decay(i, j);
      for (int d = 0; d < kGdnDim; ++d) o[i][d] += a * corrected[j][d];
    }
  }
  for (int d = 0; d < kGdnDim; ++d) {
    for (int e = 0; e < kGdnDim; ++e) {
      S[d][e] *= std::exp(G[n - 1]);
      for (int i = 0; i < n; ++i) S[d][e] += decay(n - 1, i) * k[i][d] * corrected[i][e];
    }
  }
}

}  // namespace calla
