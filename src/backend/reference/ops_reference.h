#pragma once

// The verbs in double precision, written as the equations read: the oracle of the whole engine. Nothing here is fast on
// purpose. Epsilons follow MLX's form of the model (docs/numerics.md).

#include <initializer_list>
#include <span>

#include "base/mat.h"
#include "model/state.h"
#include "ops/ops.h"

namespace calla {

class ReferenceOps {
 public:
  using Real = double;
  using Matrix = Mat<double>;
  using State = HostState<double, double>;

  explicit ReferenceOps(const ModelConfig& config) : config_(config) {}

  void embed(const Linear& w, std::span<const int32_t> ids, Matrix x);
  void rmsnorm(Matrix x, Vec gamma, Matrix y);
  void add_rmsnorm(Matrix x, Matrix y, Vec gamma, Matrix h);
  void add(Matrix x, Matrix y);
  void project(Matrix x, std::initializer_list<const Linear*> w, std::initializer_list<Matrix> y);
  void gather(Matrix x, std::span<const int32_t> rows, Matrix y);

  void norm_rope(Matrix qg, Matrix k, Vec q_norm, Vec k_norm, const Batch<State>& b);
  void attend(Matrix qg, Matrix k, Matrix v, const Batch<State>& b, int layer, Matrix o);

  void conv_silu(Matrix qkv, Vec conv, const Batch<State>& b, int layer);
  void delta_rule(Matrix qkv, Matrix a, Matrix beta, Vec A_log, Vec dt_bias, const Batch<State>& b, int layer,
                  Matrix o);
  void gated_rmsnorm(Matrix o, Matrix z, Vec gamma, Matrix y);

  void moe(Matrix x, const Moe& w, Matrix y);

 private:
  ModelConfig config_;
};

static_assert(Ops<ReferenceOps>);

}  // namespace calla
