#pragma once

// Qwen3.6-35B-A3B on one page: 40 layers; every fourth attends, the others carry a recurrent state. Prefill and decode
// are this same code with m > 1 and m = 1 rows. Each backend gives the verbs (ops/ops.h has the equation of each);
// docs/hot-path.md follows one token.

#include "model/weights.h"
#include "ops/ops.h"

namespace calla {

// Softmax attention with grouped queries, partial RoPE and an output gate.
template <Ops O, class Scratch>
void attention(O& op, const Attention& w, const Batch<typename O::State>& b, int layer, Scratch& s) {
  op.project(s.h, {&w.q, &w.k, &w.v}, {s.qg, s.k, s.v});  // qg: [m, heads, 2, 256], query and gate
  op.norm_rope(s.qg, s.k, w.q_norm, w.k_norm, b);
  op.attend(s.qg, s.k, s.v, b, layer, s.attended);  // [m, heads·256]
  op.project(s.attended, {&w.o}, {s.y});
}

// Gated DeltaNet: S ← alpha·S ; S ← S + k ⊗ beta(v − Sᵀk) ; o = Sᵀq, with alpha from a and beta from b.
template <Ops O, class Scratch>
void delta_net(O& op, const DeltaNet& w, const Batch<typename O::State>& b, int layer, Scratch& s) {
  op.project(s.h, {&w.qkv, &w.z, &w.a, &w.b}, {s.qkv, s.z, s.a, s.b});  // qkv: [m, (2·k_heads + v_heads)·128]
  op.conv_silu(s.qkv, w.conv, b, layer);
  op.delta_rule(s.qkv, s.a, s.b, w.A_log, w.dt_bias, b, layer, s.recalled);
  op.gated_rmsnorm(s.recalled, s.z, w.norm, s.recalled);  // [m, v_heads·128]
  op.project(s.recalled, {&w.out}, {s.y});
}

// Logits of the rows b.wanted, in s.logits. s is sized for the batch; the states have room for it.
template <Ops O, class Scratch>
void forward(O& op, const Weights& w, const Batch<typename O::State>& b, Scratch& s) {
  op.embed(w.tokens, b.ids, s.x);
  for (int l = 0; l < w.config.layers; ++l) {
    const Layer& layer = w.layers[l];
    op.rmsnorm(s.x, layer.norm1, s.h);
    if (layer.attends) {
      attention(op, layer.attn, b, l, s);  // h → y
    } else {
      delta_net(op, layer.gdn, b, l, s);  // h → y
    }
    op.add_rmsnorm(s.x, s.y, layer.norm2, s.h);  // x += y ; h = norm(x)
    op.moe(s.h, layer.moe, s.y);
    op.add(s.x, s.y);
  }
  op.gather(s.x, b.wanted, s.last);
  op.rmsnorm(s.last, w.norm, s.last);
  op.project(s.last, {&w.head}, {s.logits});
}

}  // namespace calla
