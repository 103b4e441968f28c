#pragma once

// The verbs that the page of the model (model/forward.h) is written in, with the equation of each. A backend provides
// them all for its own memory; backend/reference is the plain f64 form that every other one is tested against.
//
// m is the number of rows (tokens) of a pass; they belong to one or more runs, each a stretch of consecutive positions
// of one sequence. Activations are row-major matrices of O::Real. Output matrices never alias inputs unless a verb says
// so.

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "ops/dims.h"
#include "ops/linear.h"

namespace calla {

// Rows [row, row+count) of a pass hold positions [position, position+count) of one sequence.
template <class State>
struct Run {
  State* state = nullptr;
  int row = 0;
  int count = 0;
  int position = 0;
};

template <class State>
struct Batch {
  std::span<const int32_t> ids;      // [m] token ids
  std::span<const Run<State>> runs;  // disjoint, together they cover all rows, in row order
  std::span<const int32_t> wanted;   // rows whose logits are asked for, ascending
};

// Router and convolution parameters and norms are small; they are kept as f32 beside the mapped matrices.
using Vec = std::span<const float>;

template <class O>
concept Ops = requires(O op, const typename O::Matrix x, const Linear& w, const Moe& moe, Vec v,
                       const Batch<typename O::State>& b, std::span<const int32_t> rows, int layer) {
  typename O::Real;
  typename O::Matrix;  // a view of [m, n] activations
  typename O::State;   // of one sequence, all layers

  // y[i] = row ids[i] of w
  op.embed(w, b.ids, x);
  // y = x · (mean(x²) + eps)^-½ ⊙ gamma, per row
  op.rmsnorm(x, v, x);
  // x += y ; h = rmsnorm(x)
  op.add_rmsnorm(x, x, v, x);
  // x += y
  op.add(x, x);
  // y_j = W_j · x for each of several matrices with the same input
  op.project(x, std::initializer_list<const Linear*>{&w}, std::initializer_list<typename O::Matrix>{x});
  // y[i] = x[rows[i]]
  op.gather(x, rows, x);

  // Full attention. qg: [m, heads, 2, 256], each head's query and its gate; k, v: [m, kv_heads, 256]; o: [m, heads,
  // 256]. q ← rope(rmsnorm(q)), k ← rope(rmsnorm(k)) per head, in place; positions come from the runs.
  op.norm_rope(x, x, v, v, b);
  // Appends k, v to the state of `layer`; o = softmax(q·Kᵀ/16 over positions ≤ own)·V ⊙ σ(gate). Query head t reads KV
  // head t·kv_heads/heads.
  op.attend(x, x, x, b, layer, x);

  // Gated delta net. qkv: [m, (2·k_heads + v_heads)·128]; a, b: [m, v_heads]; o, z: [m, v_heads·128].
  // u_t = silu(Σ_j conv[c][j]·u_{t-3+j}) per channel, in place; the state keeps the last three inputs of each run.
  // conv: [channels, 4].
  op.conv_silu(x, v, b, layer);
  // q ← q/(√128·‖q‖), k ← k/‖k‖ per head; alpha = exp(−exp(A_log)·softplus(a + dt_bias)), beta = σ(b) per value head;
  // S ← alpha·S ; S ← S + k ⊗ beta(v − Sᵀk) ; o = Sᵀq. Value head h reads key head h·k_heads/v_heads. A_log, dt_bias:
  // [v_heads].
  op.delta_rule(x, x, x, v, v, b, layer, x);
  // y = rmsnorm(o) ⊙ gamma ⊙ silu(z) per head of 128; y may be o.
  op.gated_rmsnorm(x, x, v, x);

  // y = Σ_e p_e · mlp_e(x) over the top_k of softmax(router·x), renormalised, ties to the lower index; +
  // σ(shared_gate·x)·shared(x)
  op.moe(x, moe, x);
};

}  // namespace calla
