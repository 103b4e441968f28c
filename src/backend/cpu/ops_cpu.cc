#include "backend/cpu/ops_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace calla {
namespace {

int round_up(int n, int to) {
  return (n + to - 1) / to * to;
}

const uint8_t* bytes_of(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}

WeightRows rows_of(const Linear& w, int row, int rows) {
  const Linear part = w.rows(row, rows);
  return {bytes_of(part.weight),
          bytes_of(part.scales),
          bytes_of(part.biases),
          static_cast<int64_t>(w.row_bytes()),
          int64_t{2} * w.groups(),
          rows,
          w.groups()};
}

// The tile of `w` that begins at this row and group.
WeightRows tile_at(WeightRows w, int row, int group, const KernelTable& k) {
  w.weight += row * w.weight_stride + group * (kGroup / 2);
  w.scales += row * w.group_stride + 2 * group;
  w.biases += row * w.group_stride + 2 * group;
  w.rows = std::min(k.tile_rows, w.rows - row);
  w.groups = std::min(k.tile_groups, w.groups - group);
  return w;
}

KernelTable::GemvF32 gemv_of(const KernelTable& k, Linear::Format f) {
  return f == Linear::Format::kBf16 ? k.gemv_bf16 : f == Linear::Format::kAffine8 ? k.gemv_q8 : k.gemv_q4;
}
KernelTable::Expand expand_of(const KernelTable& k, Linear::Format f) {
  return f == Linear::Format::kBf16 ? k.expand_bf16 : f == Linear::Format::kAffine8 ? k.expand_q8 : k.expand_q4;
}

}  // namespace

CpuOps::Plan::Plan(const ModelConfig& c, int max_rows)
    : rows(max_rows),
      experts(c.experts),
      top_k(c.top_k),
      kv_heads(c.kv_heads),
      widest(std::max({c.hidden, c.heads * kHeadDim, c.v_heads * kGdnDim, c.expert_width, c.shared_width})),
      inner_width(std::max(c.expert_width, c.shared_width)),
      slots(max_rows * (c.top_k + 1)),
      query_lanes(round_up(std::max(kTaskLanes, c.kv_heads > 0 ? c.heads / c.kv_heads : 1), kStripLanes)) {}

// A buffer of `size` elements, or codes of so many with what belongs to them.
template <class T>
void CpuOps::allocate(T& buffer, size_t size) {
  if constexpr (std::is_same_v<T, Codes>) {
    buffer = {Buffer<int8_t>(size), Buffer<int8_t>(size), Buffer<float>(size / kGroup), Buffer<float>(size / kGroup)};
  } else {
    buffer = T(size);
  }
}
template <class T>
size_t CpuOps::bytes_of(size_t size) {
  if constexpr (std::is_same_v<T, Codes>) {
    return 2 * size + 2 * sizeof(float) * size / kGroup;
  } else {
    return sizeof(*std::declval<T>().data()) * size;
  }
}

template <class F>
void CpuOps::for_buffers(const Plan& p, F f) {
  const size_t rows = p.rows, slots = p.slots;
  f(&CpuOps::every_row_, slots);
  f(&CpuOps::codes_, rows * p.widest);
  f(&CpuOps::first_slot_, size_t(p.experts) + 2);
  f(&CpuOps::slot_token_, slots);
  f(&CpuOps::slot_weight_, slots);
  f(&CpuOps::chosen_, rows * p.top_k);
  f(&CpuOps::chosen_weight_, rows * p.top_k);
  f(&CpuOps::router_logits_, rows * p.experts);
  f(&CpuOps::shared_logits_, rows);
  f(&CpuOps::inner_, slots * p.inner_width);
  f(&CpuOps::inner_codes_, slots * p.inner_width);
  f(&CpuOps::frequency_, size_t{kRotary / 2});
  f(&CpuOps::angle_position_, rows);
  f(&CpuOps::cos_, rows * kRotary / 2);
  f(&CpuOps::sin_, rows * kRotary / 2);
  f(&CpuOps::part_peaks_, size_t{kAttendSlots} * p.query_lanes);
  f(&CpuOps::part_totals_, size_t{kAttendSlots} * p.query_lanes);
  f(&CpuOps::part_o_, size_t{kAttendSlots} * p.query_lanes * kHeadDim);
}

template <class F>
void CpuOps::for_local_buffers(const Plan& p, F f) {
  f(&Local::rows, size_t{kDotBlock} * p.widest);
  f(&Local::tile, size_t{1});
  f(&Local::gate, size_t{kTokenBlock} * kRowBlock);
  f(&Local::up, size_t{kTokenBlock} * kRowBlock);
  f(&Local::sums, size_t(p.rows) * kRowBlock);
  f(&Local::q, size_t{kScanBlock} * kGdnDim);
  f(&Local::k, size_t{kScanBlock} * kGdnDim);
  f(&Local::v, size_t{kScanBlock} * kGdnDim);
  f(&Local::o, size_t{kScanBlock} * kGdnDim);
  f(&Local::gates, size_t{3} * kScanBlock);
  f(&Local::state, size_t{kGdnDim} * kScanColumns);
  f(&Local::ring, size_t{kConvTaps - 1} * kConvBlock);
  f(&Local::query, size_t(p.query_lanes) * kHeadDim);
  f(&Local::query_o, size_t(p.query_lanes) * kHeadDim);
  f(&Local::strip_o, size_t(p.query_lanes) * kHeadDim);
  f(&Local::keys, size_t{kPage} * kHeadDim);
  f(&Local::values, size_t{kPage} * kHeadDim);
  f(&Local::peaks, size_t(p.query_lanes));
  f(&Local::totals, size_t(p.query_lanes));
  f(&Local::scores, size_t{kPage} * kStripLanes);
  f(&Local::visible, size_t(p.query_lanes));
}

CpuOps::CpuOps(const ModelConfig& config, Pool& pool, const KernelTable& kernels, int max_rows)
    : config_(config), plan_(config, max_rows), pool_(pool), kernel_(kernels) {
  for_buffers(plan_, [&]<class T>(T CpuOps::*member, size_t size) { allocate(this->*member, size); });
  local_.resize(pool.threads());
  for (Local& local : local_) {
    for_local_buffers(plan_, [&]<class T>(T Local::*member, size_t size) { allocate(local.*member, size); });
  }
  std::iota(every_row_.begin(), every_row_.end(), 0);
  std::fill(angle_position_.begin(), angle_position_.end(), -1);
  for (int j = 0; j < kRotary / 2; ++j) frequency_[j] = std::pow(config.rope_theta, -2.0 * j / kRotary);
  expert_tasks_.reserve(size_t(std::min(plan_.experts, max_rows * plan_.top_k)) + plan_.slots / kTokenBlock + 2);
  attend_tasks_.reserve(size_t(max_rows) * plan_.kv_heads + kAttendSlots);
}

size_t CpuOps::scratch_bytes(const ModelConfig& config, int threads, int max_rows) {
  const Plan plan(config, max_rows);
  size_t shared = 0, local = 0;
  for_buffers(plan, [&]<class T>(T CpuOps::*, size_t size) { shared += bytes_of<T>(size); });
  for_local_buffers(plan, [&]<class T>(T Local::*, size_t size) { local += bytes_of<T>(size); });
  return shared + threads * local;
}

void CpuOps::embed(const Linear& w, std::span<const int32_t> ids, Matrix x) {
  const auto expand = expand_of(kernel_, w.format);
  for_rows(x.rows, w.in, [&](int i) { expand(rows_of(w, ids[i], 1), 0, x.row(i)); });
}

void CpuOps::rmsnorm(Matrix x, Vec gamma, Matrix y) {
  for_rows(x.rows, x.cols, [&](int i) { kernel_.rmsnorm(x.row(i), gamma.data(), config_.norm_eps, x.cols, y.row(i)); });
}

void CpuOps::add_rmsnorm(Matrix x, Matrix y, Vec gamma, Matrix h) {
  for_rows(x.rows, x.cols,
           [&](int i) { kernel_.add_rmsnorm(x.row(i), y.row(i), gamma.data(), config_.norm_eps, x.cols, h.row(i)); });
}

void CpuOps::add(Matrix x, Matrix y) {
  for_rows(x.rows, x.cols, [&](int i) { kernel_.axpy(1.0f, y.row(i), x.cols, x.row(i)); });
}

void CpuOps::gather(Matrix x, std::span<const int32_t> rows, Matrix y) {
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(y.row(static_cast<int>(i)), x.row(rows[i]), sizeof(float) * x.cols);
  }
}

void CpuOps::gated_rmsnorm(Matrix o, Matrix z, Vec gamma, Matrix y) {
  for_rows(o.rows, o.cols, [&](int i) {
    for (int c = 0; c < o.cols; c += kGdnDim) {
      kernel_.gated_rmsnorm(o.row(i) + c, gamma.data(), z.row(i) + c, config_.norm_eps, kGdnDim, y.row(i) + c);
    }
  });
}

// Room in `to` for the rows of x.
CpuOps::Input CpuOps::input_in(Codes& to, Mat<const float> x, int planes) {
  return {x,
          {to.codes.data(), planes == 2 ? to.rest.data() : nullptr, to.scales.data(), to.sums.data(), x.cols,
           x.cols / kGroup}};
}

// Quantises n values of a row, from `group` on.
void CpuOps::quantize(const float* x, int n, const Input& in, int row, int group) const {
  const QuantRows& q = in.quant;
  const int64_t code = row * q.code_stride + int64_t{group} * kGroup, at = row * q.group_stride + group;
  kernel_.quantize(x, n, q.codes + code, q.rest == nullptr ? nullptr : q.rest + code, q.scales + at, q.sums + at);
}

// The rows of x as int8, in codes_ until the next call.
CpuOps::Input CpuOps::quantized(Mat<const float> x, int planes) {
  CHECK(x.rows <= plan_.rows && x.cols <= plan_.widest, "a product's input exceeds the scratch");
  const Input in = input_in(codes_, x, planes);
  for_rows(x.rows, planes * x.cols, [&](int i) { quantize(x.row(i), x.cols, in, i, 0); });
  return in;
}

void CpuOps::product(const Linear& w, int row, int rows, Product route, const Input& in, const int32_t* index,
                     int count, float* y, int64_t y_stride, Local& local, const Linear* then) const {
  const WeightRows all = rows_of(w, row, rows);
  switch (route) {
    case Product::kGemvF32:
      return gemv_of(kernel_, w.format)(all, in.x.data, in.x.stride, index, count, y, y_stride);
    case Product::kGemvInt8:
      return kernel_.gemv_q4_int8(all, in.quant, index, count, y, y_stride);
    case Product::kDotsF32:
      for (int r = 0; r < rows; r += kDotBlock) {
        const int block = std::min(kDotBlock, rows - r);
        const auto expanded = [&](int i) { return local.rows.data() + size_t(i) * w.in; };
        for (int i = 0; i < block; ++i) expand_of(kernel_, w.format)(all, r + i, expanded(i));
        for (int t = 0; t < count; t += kDotBlock) {
          for (int i = 0; i < block; i += kDotRows) {
            kernel_.dots(expanded(i), std::min(kDotRows, block - i), in.x.data, in.x.stride, index + t,
                         std::min(kDotBlock, count - t), w.in, y + t * y_stride + r + i, y_stride);
          }
        }
      }
      return;
    case Product::kTileInt8:
      for (int r = 0; r < rows; r += kernel_.tile_rows) {
        for (int g = 0; g < all.groups; g += kernel_.tile_groups) {
          WeightTile& tile = *local.tile.data();
          const WeightRows part = tile_at(all, r, g, kernel_);
          tile.next = g + part.groups < all.groups ? tile_at(all, r, g + part.groups, kernel_)
                      : r + part.rows < rows       ? tile_at(all, r + part.rows, 0, kernel_)
                      : then != nullptr            ? tile_at(rows_of(*then, row, rows), 0, 0, kernel_)
                                                   : WeightRows{};
          kernel_.expand_tile(part, &tile);
          kernel_.tile_product(tile, part.rows, part.groups, in.quant, g, index, count, g == 0, y + r, y_stride);
        }
      }
      return;
  }
}

void CpuOps::project(Matrix x, std::initializer_list<const Linear*> w, std::initializer_list<Matrix> y) {
  constexpr int kMost = 8;
  CHECK(w.size() == y.size() && w.size() <= kMost, "matrices and outputs of a projection differ in number");
  if (x.rows == 0) return;
  Piece pieces[kMost];
  int count = 0, tasks = 0;
  bool int8 = false;
  // Tasks are row blocks by token blocks, those of the same rows one after the other: the weights come from memory
  // once.
  const int token_blocks = (x.rows + kTokenBlock - 1) / kTokenBlock;
  for (const Linear* matrix : w) {
    const Product route = product_route(matrix->format, matrix->out, x.rows);
    pieces[count] = {matrix, y.begin()[count], route, tasks};
    int8 = int8 || takes_int8(route);
    tasks += (matrix->out + kRowBlock - 1) / kRowBlock * token_blocks;
    ++count;
  }
  CHECK(x.rows <= plan_.rows && x.cols <= plan_.widest, "a product's input exceeds the scratch");
  const Input in = int8 ? quantized(x, 2) : Input{x};
  pool_.run_on(tasks, [&](int task, int thread) {
    int i = count - 1;
    while (task < pieces[i].first_task) --i;
    const Piece& piece = pieces[i];
    const int block = task - piece.first_task;
    const int row = block / token_blocks * kRowBlock, rows = std::min(kRowBlock, piece.w->out - row);
    const int t = block % token_blocks * kTokenBlock;
    product(*piece.w, row, rows, piece.route, in, every_row_.data() + t, std::min(kTokenBlock, x.rows - t),
            piece.y.row(t) + row, piece.y.stride, local_[thread]);
  });
}

}  // namespace calla
