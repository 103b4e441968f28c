#pragma once

// Products of a pass of one row: decoding. They are bound by the memory's bandwidth and by what lies between two
// kernels, so norms, gates, the residual sum and the choice of experts are fused into them, and each begins to read its
// weights before the kernel ahead of it has ended. Device pointers throughout; nothing is allocated, nothing waits for
// the host.

#include <span>

#include "backend/cuda/types.h"

namespace calla::cuda {

// The input of a product, [in] values, made from what earlier verbs left.
struct StepInput {
  enum class Kind : uint8_t {
    kNorm,   // rmsnorm(x) ⊙ gamma
    kGated,  // per head of 128: rmsnorm(x) ⊙ gamma ⊙ silu(z); gamma: [128]
    kHalf,   // half, as it is
  };
  Kind kind = Kind::kHalf;
  const float *x = nullptr, *z = nullptr, *gamma = nullptr;
  const Half* half = nullptr;
  float eps = 0;
};

struct StepOutput {
  const DeviceLinear* w;  // kAffine4
  float* y;               // [w->out]
  bool add;               // y += instead of y =
};

// y_j (+)= W_j·input for up to four matrices.
void step_products(Stream stream, const StepInput& input, std::span<const StepOutput> outputs);

// Memory that the experts of a step share.
struct StepExperts {
  float* logits;  // [experts + 1], the last is the shared gate's
  Half* h;        // [hidden], rmsnorm(x) ⊙ gamma
  Half* inner;    // [top_k + 1] rows, each as wide as the widest expert
};

// Router and shared gate (kAffine8) on rmsnorm(x) ⊙ gamma in f32: logits and h. The two kernels after it choose the
// top_k experts from the logits, ties to the lower index, each for itself.
void step_route(Stream stream, const float* x, const float* gamma, float eps, const DeviceLinear& router,
                const DeviceLinear& shared_gate, const StepExperts& e);
// inner = silu(gate·h) ⊙ up·h of the chosen experts and the shared one.
void step_inner(Stream stream, const DeviceExperts& routed, const DeviceExperts& shared, int top_k,
                const StepExperts& e);
// y (+)= Σ weight·(down·inner), the chosen ones from best to last, then the shared one. Comes right after step_inner,
// which comes right after step_route: it reads the logits before step_inner has ended.
void step_outer(Stream stream, const DeviceExperts& routed, const DeviceExperts& shared, int top_k,
                const StepExperts& e, float* y, bool add);

}  // namespace calla::cuda
