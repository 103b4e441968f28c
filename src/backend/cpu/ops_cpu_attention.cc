// Attention: query and key norms with RoPE, then softmax over paged keys and values in one pass (running maximum and
// sum).

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/ops_cpu.h"

namespace calla {

void CpuOps::norm_rope(Matrix qg, Matrix k, Vec q_norm, Vec k_norm, const Batch<State>& b) {
  for (const Run<State>& run : b.runs) {
    for_rows(run.count, qg.cols / 2 + k.cols,
             [&](int i) { norm_rope_row(run.row + i, run.position + i, qg, k, q_norm, k_norm); });
  }
}

void CpuOps::norm_rope_row(int row, int position, Matrix qg, Matrix k, Vec q_norm, Vec k_norm) {
  constexpr int kPairs = kRotary / 2;
  float* cos = cos_.data() + size_t(row) * kPairs;
  float* sin = sin_.data() + size_t(row) * kPairs;
  if (angle_position_[row] !=
      position) {  // the first attention layer of a pass; in double, so that position 262143 is as good as 1
    for (int j = 0; j < kPairs; ++j) {
      const double angle = position * frequency_[j];
      cos[j] = static_cast<float>(std::cos(angle));
      sin[j] = static_cast<float>(std::sin(angle));
    }
    angle_position_[row] = position;
  }
  const auto one_head = [&](float* head, Vec gamma) {
    kernel_.rmsnorm(head, gamma.data(), config_.norm_eps, kHeadDim, head);
    kernel_.rope(head, cos, sin);
  };
  for (int h = 0; h < config_.heads; ++h) one_head(qg.row(row) + h * 2 * kHeadDim, q_norm);
  for (int h = 0; h < config_.kv_heads; ++h) one_head(k.row(row) + h * kHeadDim, k_norm);
}

void CpuOps::attend(Matrix qg, Matrix k, Matrix v, const Batch<State>& b, int layer, Matrix o) {
  for (const Run<State>& run : b.runs) {
    for_rows(run.count, 2 * k.cols, [&](int i) { append_kv(run, i, k, v, layer); });
  }
  plan_attention(b);
  const int tasks = static_cast<int>(attend_tasks_.size());
  pool_.run_on(tasks, [&](int i, int thread) { attend_task(attend_tasks_[i], qg, layer, o, local_[thread]); });
  for (const AttendTask& task : attend_tasks_) {
    if (task.parts > 1) merge_parts(task, qg, o);
  }
}

void CpuOps::append_kv(const Run<State>& run, int token, Matrix k, Matrix v, int layer) const {
  const int position = run.position + token;
  const Matrix from[] = {k, v};
  for (int which = 0; which < 2; ++which) {
    for (int h = 0; h < config_.kv_heads; ++h) {
      bf16* to = run.state->kv(layer, position / kPage, which, h) + position % kPage * kHeadDim;
      kernel_.to_bf16(from[which].row(run.row + token) + h * kHeadDim, kHeadDim, &to->bits);
    }
  }
}

void CpuOps::plan_attention(const Batch<State>& b) {
  const int group = config_.heads / config_.kv_heads;
  int units = 0;
  for (const Run<State>& run : b.runs) {
    const int tokens = query_tokens(group, run.count);
    units += (run.count + tokens - 1) / tokens * config_.kv_heads;
  }
  attend_tasks_.clear();
  int slots = 0;
  for (const Run<State>& run : b.runs) {
    const int step = query_tokens(group, run.count);
    for (int first = 0; first < run.count; first += step) {
      const int tokens = std::min(step, run.count - first);
      const int pages = (run.position + first + tokens + kPage - 1) / kPage;
      const int parts = page_parts(units, pages);
      for (int h = 0; h < config_.kv_heads; ++h) {
        for (int i = 0; i < parts; ++i) {
          const auto page_of = [&](int part) { return static_cast<int>(int64_t{pages} * part / parts); };
          attend_tasks_.push_back(
              {&run, h, first, tokens, page_of(i), page_of(i + 1), parts > 1 ? slots++ : -1, i == 0 ? parts : 0});
        }
      }
    }
  }
}

// Query rows of a task are lanes: lane = token·group + head within the group. Lanes past the last are padding that sees
// no position.
void CpuOps::attend_task(const AttendTask& task, Matrix qg, int layer, Matrix o, Local& local) {
  const Run<State>& run = *task.run;
  const int group = config_.heads / config_.kv_heads, lanes = task.tokens * group;
  const int padded = (lanes + kQueryLanes - 1) / kQueryLanes * kQueryLanes;
  std::memset(local.query.data(), 0, sizeof(float) * padded * kHeadDim);
  for (int lane = 0; lane < lanes; ++lane) {
    const int head = task.kv_head * group + lane % group;
    const float* q = qg.row(run.row + task.first_token + lane / group) + head * 2 * kHeadDim;
    kernel_.axpy(1.0f / 16, q, kHeadDim, local.query.data() + lane * kHeadDim);  // kHeadDim^-½
  }
  const bool whole = task.slot < 0;
  const size_t at = whole ? 0 : size_t(task.slot) * plan_.query_lanes;
  float* sum = whole ? local.query_o.data() : part_o_.data() + at * kHeadDim;
  float* peak = whole ? local.peaks.data() : part_peaks_.data() + at;
  float* total = whole ? local.totals.data() : part_totals_.data() + at;
  std::fill_n(sum, padded * kHeadDim, 0.0f);
  std::fill_n(peak, padded, -INFINITY);
  std::fill_n(total, padded, 0.0f);

  const int position = run.position + task.first_token;
  for (int page = task.first_page; page < task.end_page; ++page) {
    const auto bits = [&](int which) { return &run.state->kv(layer, page, which, task.kv_head)->bits; };
    for (int first = 0; first < padded; first += kQueryLanes) {
      int32_t visible[kQueryLanes];
      int span = 0;
      for (int i = 0; i < kQueryLanes; ++i) {
        const int lane = first + i, seen = position + lane / group + 1 - page * kPage;
        visible[i] = lane < lanes ? std::clamp(seen, 0, kPage) : 0;
        span = std::max(span, visible[i]);
      }
      if (span == 0) continue;
      kernel_.attend_page(local.query.data() + first * kHeadDim, bits(0), bits(1), visible, span, peak + first,
                          total + first, sum + first * kHeadDim, local.scores.data());
    }
  }
  if (!whole) return;
  for (int lane = 0; lane < lanes; ++lane) write_attended(task, lane, total[lane], sum + lane * kHeadDim, qg, o);
}

// Sums of parts meet at the highest peak, in the order of their pages.
void CpuOps::merge_parts(const AttendTask& first, Matrix qg, Matrix o) {
  const int lanes = first.tokens * (config_.heads / config_.kv_heads);
  for (int lane = 0; lane < lanes; ++lane) {
    const auto at = [&](int part) { return size_t(first.slot + part) * plan_.query_lanes + lane; };
    float top = part_peaks_[at(0)];
    for (int i = 1; i < first.parts; ++i) top = std::max(top, part_peaks_[at(i)]);
    float total = 0;
    float sum[kHeadDim] = {};
    for (int i = 0; i < first.parts; ++i) {
      const float shrink = std::exp(part_peaks_[at(i)] - top);
      total += shrink * part_totals_[at(i)];
      kernel_.axpy(shrink, part_o_.data() + at(i) * kHeadDim, kHeadDim, sum);
    }
    write_attended(first, lane, total, sum, qg, o);
  }
}

void CpuOps::write_attended(const AttendTask& task, int lane, float total, const float* sum, Matrix qg,
                            Matrix o) const {
  const int group = config_.heads / config_.kv_heads;
  const int row = task.run->row + task.first_token + lane / group, head = task.kv_head * group + lane % group;
  const float* gate = qg.row(row) + head * 2 * kHeadDim + kHeadDim;
  kernel_.sigmoid_mul(sum, 1 / total, gate, kHeadDim, o.row(row) + head * kHeadDim);
}

}  // namespace calla
