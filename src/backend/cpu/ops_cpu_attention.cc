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
  if (std::ranges::none_of(attend_tasks_, [](const AttendTask& task) { return task.parts > 1; })) return;
  pool_.run(tasks, [&](int i) { merge_parts(attend_tasks_[i], qg, o); });
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
  int units = 0;
  for (const Run<State>& run : b.runs) {
    const int tokens = query_tokens(group(), run.count);
    units += (run.count + tokens - 1) / tokens * config_.kv_heads;
  }
  attend_tasks_.clear();
  int slots = 0;
  for (const Run<State>& run : b.runs) {
    const int step = query_tokens(group(), run.count);
    for (int first = 0; first < run.count; first += step) {
      const int tokens = std::min(step, run.count - first);
      const int pages = (run.position + first + tokens + kPage - 1) / kPage;
      const int parts = page_parts(units, pages);
      for (int h = 0; h < config_.kv_heads; ++h) {
        for (int i = 0; i < parts; ++i) {
          const auto page_of = [&](int part) { return static_cast<int>(int64_t{pages} * part / parts); };
          attend_tasks_.push_back({&run, h, first, tokens, page_of(i), page_of(i + 1), i, parts, slots});
        }
        if (parts > 1) slots += parts;
      }
    }
  }
}

CpuOps::Sums CpuOps::part_sums(const AttendTask& task, int part) const {
  const size_t at = size_t(task.slot + part) * plan_.query_lanes;
  return {part_peaks_.data() + at, part_totals_.data() + at, part_o_.data() + at * kHeadDim};
}

// How many positions of a page each of the lanes [first, first + count) sees, none past the last lane; returns the
// most.
int CpuOps::visible_lanes(const AttendTask& task, int page, int first, int count, int32_t* visible) const {
  const int position = task.run->position + task.first_token + 1 - page * kPage, lanes = task.tokens * group();
  int span = 0;
  for (int i = 0; i < count; ++i) {
    const int lane = first + i;
    visible[i] = lane < lanes ? std::clamp(position + lane / group(), 0, kPage) : 0;
    span = std::max(span, visible[i]);
  }
  return span;
}

const float* CpuOps::query_row(const AttendTask& task, int lane, Matrix qg) const {
  const int head = task.kv_head * group() + lane % group();
  return qg.row(task.run->row + task.first_token + lane / group()) + head * 2 * kHeadDim;
}

void CpuOps::attend_task(const AttendTask& task, Matrix qg, int layer, Matrix o, Local& local) const {
  const int lanes = task.tokens * group();
  const bool whole = task.parts == 1;
  const Sums sums =
      whole ? Sums{local.peaks.data(), local.totals.data(), local.query_o.data()} : part_sums(task, task.part);
  std::fill_n(sums.peak, plan_.query_lanes, -INFINITY);
  std::fill_n(sums.total, plan_.query_lanes, 0.0f);
  if (in_strips(lanes)) {
    attend_strips(task, qg, layer, sums, local);
  } else {
    attend_lanes(task, qg, layer, sums, local);
  }
  if (!whole) return;
  for (int lane = 0; lane < lanes; ++lane) {
    write_attended(task, lane, sums.total[lane], sums.o + lane * kHeadDim, qg, o);
  }
}

constexpr float kQueryScale = 1.0f / 16;  // kHeadDim^-½

void CpuOps::attend_lanes(const AttendTask& task, Matrix qg, int layer, const Sums& sums, Local& local) const {
  const int lanes = task.tokens * group(), padded = (lanes + kQueryLanes - 1) / kQueryLanes * kQueryLanes;
  std::fill_n(local.query.data(), padded * kHeadDim, 0.0f);
  std::fill_n(sums.o, padded * kHeadDim, 0.0f);
  for (int lane = 0; lane < lanes; ++lane) {
    kernel_.axpy(kQueryScale, query_row(task, lane, qg), kHeadDim, local.query.data() + lane * kHeadDim);
  }
  const auto bits = [&](int page, int which) { return &task.run->state->kv(layer, page, which, task.kv_head)->bits; };
  for (int page = task.first_page; page < task.end_page; ++page) {
    const uint16_t* next_keys = bits(std::min(page + 1, task.end_page - 1), 0);
    for (int first = 0; first < padded; first += kQueryLanes) {
      int32_t visible[kQueryLanes];
      const int span = visible_lanes(task, page, first, kQueryLanes, visible);
      if (span == 0) continue;
      kernel_.attend_page(local.query.data() + first * kHeadDim, bits(page, 0), bits(page, 1), next_keys, visible, span,
                          sums.peak + first, sums.total + first, sums.o + first * kHeadDim, local.scores.data());
    }
  }
}

// Strips hold their queries and sums as [256][32].
void CpuOps::attend_strips(const AttendTask& task, Matrix qg, int layer, const Sums& sums, Local& local) const {
  constexpr int kStrip = kStripLanes * kHeadDim;
  const int lanes = task.tokens * group(), padded = (lanes + kStripLanes - 1) / kStripLanes * kStripLanes;
  const auto column = [](float* strips, int lane) { return strips + lane / kStripLanes * kStrip + lane % kStripLanes; };
  float *const query = local.query.data(), *const turned = local.strip_o.data();
  std::fill_n(query, padded * kHeadDim, 0.0f);
  std::fill_n(turned, padded * kHeadDim, 0.0f);
  for (int lane = 0; lane < lanes; ++lane) {
    const float* q = query_row(task, lane, qg);
    float* to = column(query, lane);
    for (int d = 0; d < kHeadDim; ++d) to[d * kStripLanes] = kQueryScale * q[d];
  }
  for (int page = task.first_page; page < task.end_page; ++page) {
    int32_t* const visible = local.visible.data();
    const int seen = visible_lanes(task, page, 0, padded, visible);
    for (const int which : {0, 1}) {
      const auto* bits = reinterpret_cast<const uint8_t*>(task.run->state->kv(layer, page, which, task.kv_head));
      const WeightRows row = {bits, nullptr, nullptr, 0, 0, 1, seen * (kHeadDim / kGroup)};
      kernel_.expand_bf16(row, 0, (which == 0 ? local.keys : local.values).data());
    }
    for (int first = 0; first < padded; first += kStripLanes) {
      const int span = *std::max_element(visible + first, visible + first + kStripLanes);
      if (span == 0) continue;
      kernel_.attend_strip(query + first * kHeadDim, local.keys.data(), local.values.data(), visible + first, span,
                           sums.peak + first, sums.total + first, turned + first * kHeadDim, local.scores.data());
    }
  }
  for (int lane = 0; lane < lanes; ++lane) {
    const float* from = column(turned, lane);
    for (int d = 0; d < kHeadDim; ++d) sums.o[lane * kHeadDim + d] = from[d * kStripLanes];
  }
}

// Sums of parts meet at the highest peak, in the order of their pages. Each part sees to its share of the lanes.
void CpuOps::merge_parts(const AttendTask& task, Matrix qg, Matrix o) const {
  if (task.parts == 1) return;
  const int lanes = task.tokens * group();
  for (int lane = lanes * task.part / task.parts; lane < lanes * (task.part + 1) / task.parts; ++lane) {
    float top = -INFINITY;
    for (int i = 0; i < task.parts; ++i) top = std::max(top, part_sums(task, i).peak[lane]);
    float total = 0;
    float sum[kHeadDim] = {};
    for (int i = 0; i < task.parts; ++i) {
      const Sums part = part_sums(task, i);
      const float shrink = std::exp(part.peak[lane] - top);
      total += shrink * part.total[lane];
      kernel_.axpy(shrink, part.o + lane * kHeadDim, kHeadDim, sum);
    }
    write_attended(task, lane, total, sum, qg, o);
  }
}

void CpuOps::write_attended(const AttendTask& task, int lane, float total, const float* sum, Matrix qg,
                            Matrix o) const {
  const int head = task.kv_head * group() + lane % group();
  const float* gate = query_row(task, lane, qg) + kHeadDim;
  kernel_.sigmoid_mul(sum, 1 / total, gate, kHeadDim,
                      o.row(task.run->row + task.first_token + lane / group()) + head * kHeadDim);
}

}  // namespace calla
