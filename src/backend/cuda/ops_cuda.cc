#include "backend/cuda/ops_cuda.h"

#include <algorithm>

#include "backend/cuda/attention.h"
#include "backend/cuda/delta.h"
#include "backend/cuda/products.h"
#include "backend/cuda/rows.h"
#include "base/check.h"

namespace calla::cuda {

Result<CudaScratch> CudaScratch::allocate(const ModelConfig& c, int max_rows, int max_logits) {
  CudaScratch s;
  CALLA_ASSIGN(s.memory_, DeviceMemory::allocate(bytes(c, max_rows, max_logits)));
  Arena arena(s.memory_.data());
  s.place(arena, c, max_rows, max_logits);
  return s;
}

size_t CudaScratch::bytes(const ModelConfig& c, int max_rows, int max_logits) {
  CudaScratch s;
  Arena arena;
  s.place(arena, c, max_rows, max_logits);
  return arena.used();
}

void CudaScratch::place(Arena& arena, const ModelConfig& c, int rows, int logit_rows) {
  const auto floats = [&](int cols, int r) { return DeviceMat{arena.take<float>(size_t(cols) * r), nullptr, r, cols}; };
  const auto halves = [&](int cols, int r) {
    return DeviceMat{nullptr, reinterpret_cast<Half*>(arena.take<uint16_t>(size_t(cols) * r)), r, cols};
  };
  x = floats(c.hidden, rows);
  y = floats(c.hidden, rows);
  h = floats(c.hidden, rows);
  h.half = halves(c.hidden, rows).half;
  qg = floats(c.heads * 2 * kHeadDim, rows);
  k = floats(c.kv_heads * kHeadDim, rows);
  v = floats(c.kv_heads * kHeadDim, rows);
  qkv = floats(c.conv_channels(), rows);
  z = floats(c.v_heads * kGdnDim, rows);
  a = floats(c.v_heads, rows);
  b = floats(c.v_heads, rows);
  attended = halves(c.heads * kHeadDim, rows);
  recalled = floats(c.v_heads * kGdnDim, rows);
  recalled.half = halves(c.v_heads * kGdnDim, rows).half;
  last = floats(c.hidden, logit_rows);
  last.half = halves(c.hidden, logit_rows).half;
  logits = floats(c.vocab, logit_rows);
}

void CudaScratch::resize(int rows, int wanted) {
  for (DeviceMat* m : {&x, &y, &h, &qg, &k, &v, &qkv, &z, &a, &b, &attended, &recalled}) m->rows = rows;
  last.rows = logits.rows = wanted;
}

CudaOps::Buffers CudaOps::Buffers::take(Arena& arena, const ModelConfig& c, int max_rows, int multiprocessors) {
  const size_t rows = max_rows, slots = rows * (c.top_k + 1);
  const auto halves = [&](size_t n) { return reinterpret_cast<Half*>(arena.take<uint16_t>(n)); };
  Buffers b;
  const int widest = std::max(c.expert_width, c.shared_width);
  b.step = {arena.take<float>(c.experts + 1), halves(c.hidden), halves(size_t(c.top_k + 1) * widest)};
  b.routing = Routing::take(arena, max_rows, c.experts, c.top_k);
  b.inner = halves(slots * widest);
  b.partial = halves(slots * c.hidden);
  b.router_logits = arena.take<float>(rows * c.experts);
  b.shared_logits = arena.take<float>(rows);
  b.attend = arena.take<float>(attend_pass_scratch(max_rows, sizes_of(c), multiprocessors));
  b.delta = arena.take<float>(delta_pass_scratch(max_rows, max_rows, sizes_of(c)));
  return b;
}

size_t CudaOps::scratch_bytes(const ModelConfig& config, int max_rows, int multiprocessors) {
  Arena arena;
  Buffers::take(arena, config, max_rows, multiprocessors);
  return arena.used();
}

StateSizes CudaOps::sizes_of(const ModelConfig& c) {
  const StateShape shape(c);
  return {
      c.heads,          c.kv_heads, c.k_heads, c.v_heads, c.conv_channels(), shape.attention_layers, shape.delta_layers,
      shape.page_size()};
}

Result<CudaOps> CudaOps::make(const ModelConfig& config, const DeviceWeights& weights, const DevicePages& pages,
                              int max_rows, int multiprocessors, Stream stream) {
  CALLA_ASSIGN(DeviceMemory memory, DeviceMemory::allocate(scratch_bytes(config, max_rows, multiprocessors)));
  Arena arena(memory.data());
  const Buffers buffers = Buffers::take(arena, config, max_rows, multiprocessors);
  return CudaOps(config, weights, pages, multiprocessors, stream, std::move(memory), buffers);
}

CudaOps::CudaOps(const ModelConfig& config, const DeviceWeights& weights, const DevicePages& pages, int multiprocessors,
                 Stream stream, DeviceMemory memory, const Buffers& buffers)
    : config_(config),
      shape_(config),
      sizes_(sizes_of(config)),
      weights_(weights),
      pages_(pages),
      multiprocessors_(multiprocessors),
      stream_(stream),
      turns_(rope_turns(config.rope_theta)),
      memory_(std::move(memory)),
      buffers_(buffers) {}

void CudaOps::begin(const Pass& pass, std::span<const DeviceRun> runs) {
  pass_ = pass;
  runs_ = static_cast<int>(runs.size());
  steps_ = runs_ <= kMostSteps && std::ranges::all_of(runs, [](const DeviceRun& r) { return r.count == 1; });
  waiting_.reset();
  normed_ = gated_ = nullptr;
}

// A result that waits is launched to where the page wanted it.
void CudaOps::flush() {
  if (waiting_) launch_waiting(waiting_->y, false);
}

void CudaOps::launch_waiting(Matrix to, bool add) {
  const Waiting w = *waiting_;
  waiting_.reset();
  if (w.w != nullptr) {
    if (w.x.rows == 1) {
      const StepOutput out{w.w, to.data, add};
      step_products(stream_, w.input, {&out, 1});
    } else {
      const ProductOut out{*w.w, to.data, to.cols, add};
      products(stream_, {&out, 1}, w.x.half, w.x.rows);
    }
  } else if (w.x.rows == 1) {
    step_outer(stream_, w.moe->routed, w.moe->shared, w.moe->top_k, buffers_.step, to.data, add);
  } else {
    experts_outer(stream_, w.moe->routed, w.moe->shared, buffers_.inner, w.x.rows, buffers_.routing, buffers_.partial,
                  to.data, add);
  }
}

void CudaOps::sum_into(Matrix x, Matrix y) {
  if (waiting_ && waiting_->y.data == y.data) {
    launch_waiting(x, true);
  } else {
    flush();
    cuda::add(stream_, x.data, y.data, size_t(x.rows) * x.cols);
  }
}

void CudaOps::embed(const Linear& w, std::span<const int32_t> ids, Matrix x) {
  cuda::embed(stream_, weights_.of(w), pass_.ids, static_cast<int>(ids.size()), x.data);
}

void CudaOps::rmsnorm(Matrix x, Vec gamma, Matrix y) {
  flush();
  const float* const g = weights_.of(gamma);
  if (x.rows == 1) {
    norm_ = {StepInput::Kind::kNorm, x.data, nullptr, g, nullptr, config_.norm_eps};
    normed_ = y.half;
  } else if (x.rows > 1) {
    cuda::rmsnorm(stream_, x.data, g, config_.norm_eps, x.rows, x.cols, y.data, y.half);
  }
}

void CudaOps::add_rmsnorm(Matrix x, Matrix y, Vec gamma, Matrix h) {
  sum_into(x, y);
  rmsnorm(x, gamma, h);
}

void CudaOps::add(Matrix x, Matrix y) {
  sum_into(x, y);
}

StepInput CudaOps::step_input(Matrix x) const {
  if (normed_ == x.half) return norm_;
  if (gated_ == x.half) return gate_;
  StepInput input;
  input.half = x.half;
  return input;
}

void CudaOps::project(Matrix x, std::initializer_list<const Linear*> w, std::initializer_list<Matrix> y) {
  flush();
  if (x.rows == 0) return;
  const bool step = x.rows == 1;
  if (w.size() == 1) {
    waiting_ = {*y.begin(), &weights_.of(**w.begin()), x, step ? step_input(x) : StepInput{}, nullptr};
    return;
  }
  constexpr size_t kMost = 4;
  CHECK(w.size() <= kMost && w.size() == y.size(), "more matrices than one launch takes");
  StepOutput step_out[kMost];
  ProductOut out[kMost];
  for (size_t j = 0; j < w.size(); ++j) {
    const DeviceLinear& matrix = weights_.of(*w.begin()[j]);
    const Matrix& to = y.begin()[j];
    step_out[j] = {&matrix, to.data, false};
    out[j] = {matrix, to.data, to.cols, false};
  }
  if (step) {
    step_products(stream_, step_input(x), {step_out, w.size()});
  } else {
    products(stream_, {out, w.size()}, x.half, x.rows);
  }
}

void CudaOps::gather(Matrix x, std::span<const int32_t> rows, Matrix y) {
  flush();
  if (!rows.empty()) cuda::gather(stream_, x.data, pass_.wanted, static_cast<int>(rows.size()), x.cols, y.data);
}

void CudaOps::norm_rope(Matrix, Matrix, Vec q_norm, Vec k_norm, const Batch<State>&) {
  q_norm_ = weights_.of(q_norm);
  k_norm_ = weights_.of(k_norm);
}

void CudaOps::attend(Matrix qg, Matrix k, Matrix v, const Batch<State>&, int layer, Matrix o) {
  const QkNorm norm{q_norm_, k_norm_, config_.norm_eps, turns_};
  if (steps_) {
    const int splits = attend_step_splits(runs_, config_.kv_heads, pass_.context, multiprocessors_);
    attend_step(stream_, qg.data, k.data, v.data, norm, pass_.runs, runs_, sizes_, slot(layer), pages_.data(), splits,
                buffers_.attend, o.half);
  } else {
    attend_pass(stream_, qg.data, k.data, v.data, norm, pass_.runs, runs_, qg.rows, sizes_, slot(layer), pages_.data(),
                o.half, pass_.context, buffers_.attend);
  }
}

void CudaOps::conv_silu(Matrix, Vec conv, const Batch<State>&, int) {
  conv_ = weights_.of(conv);
}

void CudaOps::delta_rule(Matrix qkv, Matrix a, Matrix beta, Vec A_log, Vec dt_bias, const Batch<State>&, int layer,
                         Matrix o) {
  const DeltaWeights w{conv_, weights_.of(A_log), weights_.of(dt_bias)};
  if (steps_) {
    delta_step(stream_, qkv.data, a.data, beta.data, w, pass_.runs, runs_, sizes_, slot(layer), o.data);
  } else {
    delta_pass(stream_, qkv.data, a.data, beta.data, w, pass_.runs, runs_, qkv.rows, sizes_, slot(layer),
               buffers_.delta, o.data);
  }
}

void CudaOps::gated_rmsnorm(Matrix o, Matrix z, Vec gamma, Matrix y) {
  const float* const g = weights_.of(gamma);
  if (o.rows == 1) {
    gate_ = {StepInput::Kind::kGated, o.data, z.data, g, nullptr, config_.norm_eps};
    gated_ = y.half;
  } else {
    cuda::gated_rmsnorm(stream_, o.data, z.data, g, config_.norm_eps, o.rows, config_.v_heads, y.half);
  }
}

void CudaOps::moe(Matrix x, const Moe& w, Matrix y) {
  flush();
  const DeviceMoe& moe = weights_.of(w);
  if (x.rows == 1) {
    CHECK(normed_ == x.half, "experts of one row that follow no norm");
    step_route(stream_, norm_.x, norm_.gamma, norm_.eps, moe.router, moe.shared_gate, buffers_.step);
    step_inner(stream_, moe.routed, moe.shared, moe.top_k, buffers_.step);
  } else {
    const ProductOut out[] = {{moe.router, buffers_.router_logits, config_.experts, false},
                              {moe.shared_gate, buffers_.shared_logits, 1, false}};
    exact_products(stream_, out, x.data, x.rows);
    choose_experts(stream_, buffers_.router_logits, buffers_.shared_logits, x.rows, buffers_.routing);
    experts_inner(stream_, moe.routed, moe.shared, x.half, x.rows, buffers_.routing, buffers_.inner);
  }
  waiting_ = {y, nullptr, x, {}, &moe};
}

}  // namespace calla::cuda
