#pragma once

// The verbs on the processor: f32 activations, weights in place in the checkpoint, keys and values in bf16. Each verb
// cuts its work into tasks for the pool and calls the kernels of one table. Results are the same bits for any number of
// threads, and a sequence gets the same bits wherever it stands in passes of one precision (gate_up_planes in
// routes.h). Error bounds: docs/numerics.md.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/routes.h"
#include "base/buffer.h"
#include "base/mat.h"
#include "base/pool.h"
#include "model/state.h"
#include "ops/ops.h"

namespace calla {

class CpuOps {
 public:
  using Real = float;
  using Matrix = Mat<float>;
  using State = HostState<bf16, float>;

  // All scratch for passes of up to `max_rows` rows is allocated here; the verbs allocate nothing. The pool and the
  // table must outlive this.
  CpuOps(const ModelConfig& config, Pool& pool, const KernelTable& kernels, int max_rows);
  // What the constructor allocates.
  static size_t scratch_bytes(const ModelConfig& config, int threads, int max_rows);

  const char* isa() const { return kernel_.isa; }

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
  // Sizes that all scratch follows from.
  struct Plan {
    Plan(const ModelConfig& c, int max_rows);
    int rows;
    int experts;
    int top_k;
    int kv_heads;
    int widest;       // columns of the widest input of a product
    int inner_width;  // columns of an expert's inner activations, routed or shared
    int slots;        // (token, expert) pairs of a pass, the shared expert included
    int query_lanes;  // query rows of one attention task, padded to whole strips
  };

  // Scratch of one thread.
  struct Local {
    Buffer<float> rows;  // expanded weight rows: [kDotBlock][widest]
    Buffer<WeightTile> tile;
    Buffer<float> gate, up;  // [kTokenBlock][kRowBlock]
    Buffer<float> sums;      // of the experts' down products: [rows][kRowBlock]
    // Delta rule: [kScanBlock][128] each; alpha, beta and k·q; a dense [128][32] of S.
    Buffer<float> q, k, v, o, gates, state;
    Buffer<float> ring;            // convolution: [3][kConvBlock]
    Buffer<float> query, query_o;  // attention: [lanes][256] twice
    Buffer<float> strip_o;         // strips of [256][32]; query holds such, too, when a task is taken in strips
    Buffer<float> keys, values;    // a page as f32: [64][256]
    Buffer<float> peaks, totals, scores;
    Buffer<int32_t> visible;
  };

  // Rows as int8, in memory that the next pass uses again.
  struct Codes {
    Buffer<int8_t> codes, rest;
    Buffer<float> scales, sums;
  };
  // Input of a product: f32 rows and, where a route wants them, the same rows as int8.
  struct Input {
    Mat<const float> x;
    QuantRows quant{};
  };
  // One of the matrices of project().
  struct Piece {
    const Linear* w;
    Matrix y;
    Product route;
    int first_task;
  };
  // Some tokens of one expert (config_.experts: the shared one): slots [slot, slot+count).
  struct ExpertTask {
    int expert, slot, count;
    int total;  // tokens of this expert in the pass; decides the route
  };
  // A stretch of attention: some query rows of one run and KV head, and some of their pages.
  struct AttendTask {
    const Run<State>* run;
    int kv_head, first_token, tokens;
    int first_page, end_page;
    int part, parts;  // which of how many tasks that make up the result of these rows
    int slot;         // where the partial result of part 0 goes, the others follow; unused for a single part
  };
  // Running sums of the query rows ("lanes") of a task. A lane is token·group + head within the group.
  struct Sums {
    float *peak, *total;  // [lanes]
    float* o;             // [lanes][256]
  };

  // f(member, size) for every shared buffer, f(Local::member, size) for every buffer of a thread: allocates them, or
  // counts bytes.
  template <class F>
  static void for_buffers(const Plan& p, F f);
  template <class F>
  static void for_local_buffers(const Plan& p, F f);
  template <class T>
  static void allocate(T& buffer, size_t size);
  template <class T>
  static size_t bytes_of(size_t size);

  template <class F>
  void for_rows(int rows, int work_per_row, const F& f);
  static Input input_in(Codes& to, Mat<const float> x, int planes);
  Input quantized(Mat<const float> x, int planes);
  Input inner_input(int rows);
  void quantize(const float* x, int n, const Input& in, int row, int group) const;
  // y[t·y_stride + r] = row (row + r) of w times input row index[t], for r in [0, rows) and t in [0, count). `then`:
  // the matrix whose same rows this thread takes next, if that is known.
  void product(const Linear& w, int row, int rows, Product route, const Input& in, const int32_t* index, int count,
               float* y, int64_t y_stride, Local& local, const Linear* then = nullptr) const;

  void route_tokens(Matrix x, const Moe& w);
  void choose_experts(int row, int top_k);
  void sort_by_expert(int rows, int top_k);
  void plan_experts(int rows, int top_k);
  void inner_task(const Moe& w, const ExpertTask& task, int group, const Input& in, const Input& inner, Local& local);
  void outer_task(const Moe& w, int row, int rows, const Input& inner, Matrix y, Local& local);

  void append_kv(const Run<State>& run, int token, Matrix k, Matrix v, int layer) const;
  void plan_attention(const Batch<State>& b);
  int group() const { return config_.heads / config_.kv_heads; }
  Sums part_sums(const AttendTask& task, int part) const;
  int visible_lanes(const AttendTask& task, int page, int first, int count, int32_t* visible) const;
  const float* query_row(const AttendTask& task, int lane, Matrix qg) const;
  void attend_task(const AttendTask& task, Matrix qg, int layer, Matrix o, Local& local) const;
  void attend_lanes(const AttendTask& task, Matrix qg, int layer, const Sums& sums, Local& local) const;
  void attend_strips(const AttendTask& task, Matrix qg, int layer, const Sums& sums, Local& local) const;
  void merge_parts(const AttendTask& task, Matrix qg, Matrix o) const;
  void write_attended(const AttendTask& task, int lane, float total, const float* sum, Matrix qg, Matrix o) const;
  void norm_rope_row(int row, int position, Matrix qg, Matrix k, Vec q_norm, Vec k_norm);

  void conv_block(const Run<State>& run, int first, int channels, Matrix qkv, Vec conv, int layer, Local& local) const;
  // next: the matrix that this thread probably takes next.
  void delta_head(const Run<State>& run, int head, Matrix qkv, Matrix a, Matrix beta, Vec A_log, Vec dt_bias, int layer,
                  Matrix o, Local& local, const float* next) const;

  const ModelConfig config_;
  const Plan plan_;
  Pool& pool_;
  const KernelTable& kernel_;
  std::vector<Local> local_;  // per thread

  Buffer<int32_t> every_row_;  // 0, 1, 2, …
  Codes codes_;                // the input of a product

  // Experts. Slots of expert e are [first_slot_[e], first_slot_[e+1]), ascending by token; the shared expert comes
  // last, with all tokens.
  Buffer<int32_t> first_slot_, slot_token_;
  Buffer<float> slot_weight_;
  Buffer<int32_t> chosen_;  // [rows][top_k]
  Buffer<float> chosen_weight_, router_logits_, shared_logits_;
  std::vector<ExpertTask> expert_tasks_;
  Buffer<float> inner_;  // [slots][inner_width]
  Codes inner_codes_;

  Buffer<double> frequency_;        // theta^(−2j/64)
  Buffer<int32_t> angle_position_;  // the position whose angles a row of cos_ and sin_ holds; −1: none
  Buffer<float> cos_, sin_;         // [rows][32]
  std::vector<AttendTask> attend_tasks_;
  Buffer<float> part_peaks_, part_totals_, part_o_;  // [kAttendSlots][lanes], and [..][256]
};

// f(row) for every row, on the pool when there is enough work: a region costs about as much as 10,000 elements.
template <class F>
void CpuOps::for_rows(int rows, int work_per_row, const F& f) {
  constexpr int kWorkPerTask = 8192;
  const int block = std::max(1, kWorkPerTask / std::max(1, work_per_row));
  if (rows <= block) {
    for (int i = 0; i < rows; ++i) f(i);
    return;
  }
  pool_.run((rows + block - 1) / block, [&](int task) {
    for (int i = task * block; i < std::min(rows, (task + 1) * block); ++i) f(i);
  });
}

static_assert(Ops<CpuOps>);

}  // namespace calla
