// Mixture of experts in three parallel regions: router; gate, up and SiLU of all chosen experts and the shared one;
// down. The last is cut by output rows, and a task adds up all experts of its rows in ascending order: no two threads
// meet in one sum, and the order is fixed.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/ops_cpu.h"

namespace calla {

void CpuOps::moe(Matrix x, const Moe& w, Matrix y) {
  if (x.rows == 0) return;
  const Input in = quantized(x, gate_up_planes(x.rows)), inner = inner_input(x.rows);
  route_tokens(x, w);
  sort_by_expert(x.rows, w.top_k);
  plan_experts(x.rows, w.top_k);

  // Tasks of the shared expert (a unit has more groups) come first, then the routed ones.
  const int shared_units = (x.rows + kTokenBlock - 1) / kTokenBlock;
  const int shared_groups = w.shared.gate.out / kGroup, groups = w.experts[0].gate.out / kGroup;
  const int shared_tasks = shared_units * shared_groups;
  const int tasks = shared_tasks + (static_cast<int>(expert_tasks_.size()) - shared_units) * groups;
  pool_.run_on(tasks, [&](int task, int thread) {
    const bool shared = task < shared_tasks;
    const int unit = shared ? task / shared_groups : shared_units + (task - shared_tasks) / groups;
    const int group = shared ? task % shared_groups : (task - shared_tasks) % groups;
    inner_task(w, expert_tasks_[unit], group, in, inner, local_[thread]);
  });

  const int block = outer_block(x.rows);
  pool_.run_on((y.cols + block - 1) / block, [&](int task, int thread) {
    outer_task(w, task * block, std::min(block, y.cols - task * block), inner, y, local_[thread]);
  });
}

// Router and shared gate with f32 activations, whatever their format, then each row's choice.
void CpuOps::route_tokens(Matrix x, const Moe& w) {
  const Product route = exact_route(x.rows);
  const Input in = {x};
  const int tasks = (w.router.out + kRouterBlock - 1) / kRouterBlock;
  pool_.run_on(tasks + 1, [&](int task, int thread) {
    if (task == tasks) {
      product(w.shared_gate, 0, 1, route, in, every_row_.data(), x.rows, shared_logits_.data(), 1, local_[thread]);
      return;
    }
    const int row = task * kRouterBlock, rows = std::min(kRouterBlock, w.router.out - row);
    product(w.router, row, rows, route, in, every_row_.data(), x.rows, router_logits_.data() + row, plan_.experts,
            local_[thread]);
  });
  for_rows(x.rows, 24 * plan_.experts, [&](int row) { choose_experts(row, w.top_k); });
}

// The top_k largest logits of a row, ties to the lower index, and their softmax. Renormalising the softmax over all
// experts gives the same.
void CpuOps::choose_experts(int row, int top_k) {
  const float* logits = router_logits_.data() + size_t(row) * plan_.experts;
  int32_t* chosen = chosen_.data() + size_t(row) * top_k;
  int filled = 0;
  for (int e = 0; e < plan_.experts; ++e) {
    if (filled == top_k && !(logits[e] > logits[chosen[top_k - 1]])) continue;
    int at = filled < top_k ? filled++ : top_k - 1;
    for (; at > 0 && logits[e] > logits[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
  double total = 0, p[kMaxTopK];
  for (int i = 0; i < top_k; ++i) total += p[i] = std::exp(double{logits[chosen[i]]} - logits[chosen[0]]);
  for (int i = 0; i < top_k; ++i) chosen_weight_[size_t(row) * top_k + i] = static_cast<float>(p[i] / total);
}

// Counting sort of (token, expert) pairs into slots; the shared expert's slots follow.
void CpuOps::sort_by_expert(int rows, int top_k) {
  const int pairs = rows * top_k, experts = plan_.experts;
  std::fill(first_slot_.begin(), first_slot_.end(), 0);
  for (int i = 0; i < pairs; ++i) ++first_slot_[chosen_[i] + 2];
  for (int e = 2; e <= experts; ++e) first_slot_[e] += first_slot_[e - 1];
  // first_slot_[e+1] counts up from the start of e to its end, which is the start of e+1.
  for (int i = 0; i < pairs; ++i) {
    const int slot = first_slot_[chosen_[i] + 1]++;
    slot_token_[slot] = i / top_k;
    slot_weight_[slot] = chosen_weight_[i];
  }
  first_slot_[experts + 1] = pairs + rows;
  for (int i = 0; i < rows; ++i) {
    slot_token_[pairs + i] = i;
    slot_weight_[pairs + i] = static_cast<float>(1 / (1 + std::exp(-double{shared_logits_[i]})));
  }
}

void CpuOps::plan_experts(int rows, int top_k) {
  expert_tasks_.clear();
  const auto add = [&](int expert, int first, int end) {
    for (int slot = first; slot < end; slot += kTokenBlock) {
      expert_tasks_.push_back({expert, slot, std::min(kTokenBlock, end - slot), end - first});
    }
  };
  add(plan_.experts, rows * top_k, rows * top_k + rows);
  for (int e = 0; e < plan_.experts; ++e) add(e, first_slot_[e], first_slot_[e + 1]);
}

// The inner activations of every slot of a pass.
CpuOps::Input CpuOps::inner_input(int rows) {
  const Mat<const float> x(inner_.data(), rows * (config_.top_k + 1), plan_.inner_width);
  return input_in(inner_codes_, x, 2);
}

// inner = silu(gate·x) ⊙ up·x for one group of 64 of an expert's inner width, quantised at once where the down product
// takes int8.
void CpuOps::inner_task(const Moe& w, const ExpertTask& task, int group, const Input& in, const Input& inner,
                        Local& local) {
  const Mlp& mlp = task.expert == plan_.experts ? w.shared : w.experts[task.expert];
  const int32_t* tokens = slot_token_.data() + task.slot;
  const int row = group * kGroup;
  product(mlp.gate, row, kGroup, product_route(mlp.gate.format, mlp.gate.out, task.total), in, tokens, task.count,
          local.gate.data(), kRowBlock, local, &mlp.up);
  product(mlp.up, row, kGroup, product_route(mlp.up.format, mlp.up.out, task.total), in, tokens, task.count,
          local.up.data(), kRowBlock, local);
  const bool int8 = takes_int8(product_route(mlp.down.format, mlp.down.out, task.total));
  for (int t = 0; t < task.count; ++t) {
    const int slot = task.slot + t;
    float* values = inner_.data() + size_t(slot) * plan_.inner_width + row;
    kernel_.silu_mul(local.gate.data() + t * kRowBlock, local.up.data() + t * kRowBlock, kGroup, values);
    if (int8) quantize(values, kGroup, inner, slot, group);
  }
}

// y = Σ_e weight_e · down_e·inner_e for some output rows. They are summed in a block of their own: rows of y are a
// power of two apart and would push each other out of the caches.
void CpuOps::outer_task(const Moe& w, int row, int rows, const Input& inner, Matrix y, Local& local) {
  float* const sums = local.sums.data();
  std::fill_n(sums, y.rows * rows, 0.0f);
  const auto down_of = [&](const ExpertTask& task) -> const Linear& {
    return task.expert == plan_.experts ? w.shared.down : w.experts[task.expert].down;
  };
  for (const ExpertTask& task : expert_tasks_) {
    const Linear& down = down_of(task);
    const Product route = product_route(down.format, down.out, task.total);
    product(down, row, rows, route, inner, every_row_.data() + task.slot, task.count, local.gate.data(), kRowBlock,
            local, &task == &expert_tasks_.back() ? nullptr : &down_of(*(&task + 1)));
    for (int t = 0; t < task.count; ++t) {
      const int slot = task.slot + t;
      kernel_.axpy(slot_weight_[slot], local.gate.data() + t * kRowBlock, rows, sums + slot_token_[slot] * rows);
    }
  }
  for (int i = 0; i < y.rows; ++i) std::memcpy(y.row(i) + row, sums + i * rows, sizeof(float) * rows);
}

}  // namespace calla
