#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "ops/dims.h"
#include "ops/linear.h"
#include "ops/ops.h"
#include "ops/profile.h"

namespace calla {

// The verbs of O, each with its time, bytes and multiplications added to a Profile, which must outlive this.
template <Ops O>
class ProfiledOps {
 public:
  using Real = typename O::Real;
  using Matrix = typename O::Matrix;
  using State = typename O::State;

  ProfiledOps(std::unique_ptr<O> op, Profile& profile) : op_(std::move(op)), profile_(profile) {}

  void embed(const Linear& w, std::span<const int32_t> ids, Matrix x) {
    count({"embed", 0, 0, 1, 0, w.rows(0, 1).bytes() * ids.size()}, [&] { op_->embed(w, ids, x); });
  }
  void rmsnorm(Matrix x, Vec gamma, Matrix y) {
    count({"rmsnorm", 0, 0, 1, 0, gamma.size_bytes()}, [&] { op_->rmsnorm(x, gamma, y); });
  }
  void add_rmsnorm(Matrix x, Matrix y, Vec gamma, Matrix h) {
    count({"add_rmsnorm", 0, 0, 1, 0, gamma.size_bytes()}, [&] { op_->add_rmsnorm(x, y, gamma, h); });
  }
  void add(Matrix x, Matrix y) {
    count({"add", 0, 0, 1}, [&] { op_->add(x, y); });
  }
  void project(Matrix x, std::initializer_list<const Linear*> w, std::initializer_list<Matrix> y) {
    VerbCost cost{"project", x.cols, 0, 1};
    for (const Linear* matrix : w) {
      cost.out += matrix->out;
      cost.bytes += x.rows > 0 ? matrix->bytes() : 0;
      cost.macs += matrix->macs() * x.rows;
    }
    count(cost, [&] { op_->project(x, w, y); });
  }
  void gather(Matrix x, std::span<const int32_t> rows, Matrix y) {
    count({"gather", 0, 0, 1}, [&] { op_->gather(x, rows, y); });
  }

  void norm_rope(Matrix qg, Matrix k, Vec q_norm, Vec k_norm, const Batch<State>& b) {
    count({"norm_rope", 0, 0, 1, 0, q_norm.size_bytes() + k_norm.size_bytes()},
          [&] { op_->norm_rope(qg, k, q_norm, k_norm, b); });
  }
  // Keys and values of all positions are read once for a run, those of its own rows also written.
  void attend(Matrix qg, Matrix k, Matrix v, const Batch<State>& b, int layer, Matrix o) {
    using Kv = std::remove_pointer_t<decltype(std::declval<const State&>().kv(0, 0, 0, 0))>;
    VerbCost cost{"attend", 0, 0, 1};
    for (const Run<State>& run : b.runs) {
      const uint64_t rows = run.count, before = run.position;
      cost.bytes += (before + 2 * rows) * (k.cols + v.cols) * sizeof(Kv);
      cost.macs += (rows * before + rows * (rows + 1) / 2) * 2 * o.cols;
    }
    count(cost, [&] { op_->attend(qg, k, v, b, layer, o); });
  }

  void conv_silu(Matrix qkv, Vec conv, const Batch<State>& b, int layer) {
    const uint64_t window = uint64_t{kConvTaps - 1} * qkv.cols * sizeof(Real);
    count({"conv_silu", 0, 0, 1, 0, conv.size_bytes() + 2 * window * b.runs.size(), conv.size() * uint64_t(qkv.rows)},
          [&] { op_->conv_silu(qkv, conv, b, layer); });
  }
  // S is read and written once for a run; Sᵀk, the update and Sᵀq are a multiplication each for every element and row.
  void delta_rule(Matrix qkv, Matrix a, Matrix beta, Vec A_log, Vec dt_bias, const Batch<State>& b, int layer,
                  Matrix o) {
    const uint64_t elements = uint64_t{kGdnDim} * kGdnDim * beta.cols;
    count({"delta_rule", 0, 0, 1, 0, 2 * elements * sizeof(Real) * b.runs.size(), 3 * elements * qkv.rows},
          [&] { op_->delta_rule(qkv, a, beta, A_log, dt_bias, b, layer, o); });
  }
  void gated_rmsnorm(Matrix o, Matrix z, Vec gamma, Matrix y) {
    count({"gated_rmsnorm", 0, 0, 1, 0, gamma.size_bytes()}, [&] { op_->gated_rmsnorm(o, z, gamma, y); });
  }

  // The router's choice stays inside the verb: the bytes are those of as many experts as evenly spread choices would
  // touch, which is exact for one row.
  void moe(Matrix x, const Moe& w, Matrix y) {
    const auto experts = static_cast<double>(w.experts.size());
    const double touched = experts * (1 - std::pow(1 - w.top_k / experts, x.rows));
    const Mlp& expert = w.experts.front();
    VerbCost cost{"moe", 0, 0, 1};
    cost.bytes = static_cast<uint64_t>(touched * static_cast<double>(expert.bytes()) + 0.5) + w.router.bytes() +
                 w.shared.bytes() + w.shared_gate.bytes();
    cost.macs = x.rows * (w.top_k * expert.macs() + w.router.macs() + w.shared.macs() + w.shared_gate.macs());
    count(cost, [&] { op_->moe(x, w, y); });
  }

 private:
  template <class F>
  void count(VerbCost cost, const F& f) {
    const auto start = Clock::now();
    f();
    cost.seconds = seconds_since(start);
    profile_.add(cost);
  }

  std::unique_ptr<O> op_;
  Profile& profile_;
};

}  // namespace calla
