#pragma once

// The verbs on a GPU. A verb launches kernels on one stream and returns; nothing is computed yet when it does. Some
// verbs launch nothing of their own: a norm, a convolution, a gate or a sum is taken up by the kernel of the verb that
// needs it, because in a step of one token the way from kernel to kernel costs as much as the work. What waits to be
// taken up is remembered here, and launched alone where the next verb is another one.

#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "backend/cuda/attention.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/state.h"
#include "backend/cuda/step.h"
#include "backend/cuda/types.h"
#include "ops/ops.h"

namespace calla::cuda {

// A view of [rows, cols] activations on the device, row-major. Inputs of products have f16 values, others f32, the
// normed residual both.
struct DeviceMat {
  float* data = nullptr;
  Half* half = nullptr;
  int rows = 0, cols = 0;
};

// The activations of one pass, as HostScratch.
class CudaScratch {
 public:
  static Result<CudaScratch> allocate(const ModelConfig& c, int max_rows, int max_logits);
  static size_t bytes(const ModelConfig& c, int max_rows, int max_logits);
  void resize(int rows, int wanted);
  DeviceMat x, h, y, qg, k, v, qkv, z, a, b, attended, recalled, last, logits;

 private:
  void place(Arena& arena, const ModelConfig& c, int rows, int logits);
  DeviceMemory memory_;
};

class CudaOps {
 public:
  using Real = float;
  using Matrix = DeviceMat;
  using State = CudaState;

  // What the verbs need besides the page's own matrices, for passes of up to max_rows rows. weights, pages and stream
  // must outlive this.
  static Result<CudaOps> make(const ModelConfig& config, const DeviceWeights& weights, const DevicePages& pages,
                              int max_rows, int multiprocessors, Stream stream);
  static size_t scratch_bytes(const ModelConfig& config, int max_rows, int multiprocessors);
  static constexpr int kMostSteps = 64;  // runs of one row that are decoded as a step

  // What the next pass works on: ids, runs and wanted rows on the device, the same in the batch on the host. steps: all
  // runs have one row, and positions may be read on the device only. context: no run gets longer than that.
  struct Pass {
    const int32_t *ids, *wanted;
    const DeviceRun* runs;
    int context;
  };
  void begin(const Pass& pass, std::span<const DeviceRun> runs);
  // After the page: launches what still waits.
  void end() { flush(); }

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
  // Memory of the verbs' own.
  struct Buffers {
    StepExperts step;
    Routing routing;
    Half* inner;    // [rows·(top_k+1)][width]
    Half* partial;  // [rows·(top_k+1)][hidden]
    float *router_logits, *shared_logits;
    float *attend, *delta;  // scratch of attention and delta rule
    static Buffers take(Arena& arena, const ModelConfig& config, int max_rows, int multiprocessors);
  };
  CudaOps(const ModelConfig& config, const DeviceWeights& weights, const DevicePages& pages, int multiprocessors,
          Stream stream, DeviceMemory memory, const Buffers& buffers);
  static StateSizes sizes_of(const ModelConfig& config);

  // A product or the experts' outer half, not yet launched: its result may go to y or be added to another matrix.
  struct Waiting {
    Matrix y;
    const DeviceLinear* w = nullptr;  // a product of x; else the experts
    Matrix x;
    StepInput input;  // of a product with one row
    const DeviceMoe* moe = nullptr;
  };
  void launch_waiting(Matrix to, bool add);
  void flush();
  void sum_into(Matrix x, Matrix y);
  StepInput step_input(Matrix x) const;
  int slot(int layer) const { return shape_.slot[layer]; }

  const ModelConfig config_;
  const StateShape shape_;
  const StateSizes sizes_;
  const DeviceWeights& weights_;
  const DevicePages& pages_;
  int multiprocessors_;
  Stream stream_;

  Pass pass_{};
  int runs_ = 0;
  bool steps_ = false;  // every run has one row

  std::optional<Waiting> waiting_;
  StepInput norm_, gate_;                              // of one row
  const void *normed_ = nullptr, *gated_ = nullptr;    // the matrices that stand for their results
  const float *q_norm_ = nullptr, *k_norm_ = nullptr;  // norm_rope's, for attend
  RopeTurns turns_;
  const float* conv_ = nullptr;  // conv_silu's, for delta_rule

  DeviceMemory memory_;
  Buffers buffers_;
};

}  // namespace calla::cuda
