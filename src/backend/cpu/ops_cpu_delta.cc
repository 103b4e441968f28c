// Gated delta net: the causal convolution with its window of three inputs, and the delta rule.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "backend/cpu/ops_cpu.h"

namespace calla {

void CpuOps::conv_silu(Matrix qkv, Vec conv, const Batch<State>& b, int layer) {
  const int blocks = (qkv.cols + kConvBlock - 1) / kConvBlock;
  pool_.run_on(static_cast<int>(b.runs.size()) * blocks, [&](int task, int thread) {
    const int first = task % blocks * kConvBlock;
    conv_block(b.runs[task / blocks], first, std::min(kConvBlock, qkv.cols - first), qkv, conv, layer, local_[thread]);
  });
}

// A ring of the last three inputs: the kernel leaves each input where the oldest was.
void CpuOps::conv_block(const Run<State>& run, int first, int channels, Matrix qkv, Vec conv, int layer,
                        Local& local) const {
  constexpr int kPast = kConvTaps - 1;
  float* window = run.state->window(layer) + first;
  float* ring[kPast];
  for (int j = 0; j < kPast; ++j) {
    ring[j] = local.ring.data() + j * kConvBlock;
    std::memcpy(ring[j], window + size_t(j) * qkv.cols, sizeof(float) * channels);
  }
  for (int i = 0; i < run.count; ++i) {
    kernel_.conv_silu(qkv.row(run.row + i) + first, conv.data() + size_t(first) * kConvTaps, ring[0], ring[1], ring[2],
                      channels);
    std::rotate(ring, ring + 1, ring + kPast);
  }
  for (int j = 0; j < kPast; ++j) std::memcpy(window + size_t(j) * qkv.cols, ring[j], sizeof(float) * channels);
}

void CpuOps::delta_rule(Matrix qkv, Matrix a, Matrix beta, Vec A_log, Vec dt_bias, const Batch<State>& b, int layer,
                        Matrix o) {
  const int heads = config_.v_heads, tasks = static_cast<int>(b.runs.size()) * heads;
  const auto state_of = [&](int task) { return b.runs[task / heads].state->recurrent(layer, task % heads); };
  pool_.run_on(tasks, [&](int task, int thread) {
    delta_head(b.runs[task / heads], task % heads, qkv, a, beta, A_log, dt_bias, layer, o, local_[thread],
               state_of(std::min(task + 1, tasks - 1)));
  });
}

// A block of tokens is copied together, since rows of qkv and o are a power of two apart: the scan would wait for each
// v.
void CpuOps::delta_head(const Run<State>& run, int head, Matrix qkv, Matrix a, Matrix beta, Vec A_log, Vec dt_bias,
                        int layer, Matrix o, Local& local, const float* next) const {
  const int k_head = head * config_.k_heads / config_.v_heads, key_width = config_.k_heads * kGdnDim;
  constexpr float kEps = kGdnDim * 1e-6f;  // MLX: rms_norm with eps 1e-6, seen as eps on Σx²
  const float query_scale = static_cast<float>(1 / std::sqrt(double{kGdnDim}));
  const double rate = std::exp(double{A_log[head]});
  float* const alpha = local.gates.data();
  float* const write = alpha + kScanBlock;  // beta
  float* const kq = write + kScanBlock;
  float* const S = run.state->recurrent(layer, head);

  for (int first = 0; first < run.count; first += kScanBlock) {
    const int count = std::min(kScanBlock, run.count - first), row = run.row + first;
    for (int t = 0; t < count; ++t) {
      const float* q = qkv.row(row + t) + k_head * kGdnDim;
      float *q_unit = local.q.data() + t * kGdnDim, *k_unit = local.k.data() + t * kGdnDim;
      kernel_.l2norm(q, kEps, query_scale, kGdnDim, q_unit);
      kernel_.l2norm(q + key_width, kEps, 1.0f, kGdnDim, k_unit);
      std::memcpy(local.v.data() + t * kGdnDim, qkv.row(row + t) + 2 * key_width + head * kGdnDim,
                  sizeof(float) * kGdnDim);
      kernel_.dots(k_unit, 1, q_unit, kGdnDim, every_row_.data(), 1, kGdnDim, kq + t, 1);
      const double step = double{a.row(row + t)[head]} + dt_bias[head];
      const double softplus = step > 0 ? step + std::log1p(std::exp(-step)) : std::log1p(std::exp(step));
      alpha[t] = static_cast<float>(std::exp(-rate * softplus));
      write[t] = static_cast<float>(1 / (1 + std::exp(-double{beta.row(row + t)[head]})));
    }
    for (int column = 0; column < kGdnDim; column += kScanColumns) {
      float* part = S + column;
      int64_t stride = kGdnDim;
      const auto copy = [&](float* to, int64_t to_stride, const float* from, int64_t from_stride) {
        for (int d = 0; d < kGdnDim; ++d)
          std::memcpy(to + d * to_stride, from + d * from_stride, sizeof(float) * kScanColumns);
      };
      if (dense_state(count)) {
        copy(local.state.data(), kScanColumns, part, kGdnDim);
        part = local.state.data();
        stride = kScanColumns;
      }
      kernel_.delta_scan(part, stride, local.q.data(), local.k.data(), kq, local.v.data() + column, kGdnDim, alpha,
                         write, count, local.o.data() + column, kGdnDim,
                         column + kScanColumns < kGdnDim ? S + column + kScanColumns : next);
      if (dense_state(count)) copy(S + column, kGdnDim, part, kScanColumns);
    }
    for (int t = 0; t < count; ++t) {
      std::memcpy(o.row(row + t) + head * kGdnDim, local.o.data() + t * kGdnDim, sizeof(float) * kGdnDim);
    }
  }
}

}  // namespace calla
