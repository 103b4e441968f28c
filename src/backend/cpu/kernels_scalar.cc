// The plain table: what every kernel means, in portable C++. It serves processors without a faster table and is the
// second opinion in tests of the others. Sums run in double where that costs nothing, so its errors are those of the
// formats only.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "base/bf16.h"
#include "ops/dims.h"
#include "quant/affine.h"

namespace calla {
namespace {

float sigmoid(float t) {
  return 1 / (1 + std::exp(-t));
}

float load_bf16(const uint8_t* p, int64_t index) {
  bf16 v;
  std::memcpy(&v, p + 2 * index, 2);
  return to_f32(v);
}

double sum_of_squares(const float* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  return sum;
}

float inverse_rms(const float* x, float eps, int n) {
  return static_cast<float>(1 / std::sqrt(sum_of_squares(x, n) / n + eps));
}

void rmsnorm(const float* x, const float* gamma, float eps, int n, float* y) noexcept {
  const float scale = inverse_rms(x, eps, n);
  for (int i = 0; i < n; ++i) y[i] = x[i] * scale * gamma[i];
}

void add_rmsnorm(float* x, const float* y, const float* gamma, float eps, int n, float* h) noexcept {
  for (int i = 0; i < n; ++i) x[i] += y[i];
  rmsnorm(x, gamma, eps, n, h);
}

void gated_rmsnorm(const float* o, const float* gamma, const float* z, float eps, int n, float* y) noexcept {
  const float scale = inverse_rms(o, eps, n);
  for (int i = 0; i < n; ++i) y[i] = o[i] * scale * gamma[i] * (z[i] * sigmoid(z[i]));
}

void l2norm(const float* x, float eps, float scale, int n, float* y) noexcept {
  const auto factor = static_cast<float>(scale / std::sqrt(sum_of_squares(x, n) + eps));
  for (int i = 0; i < n; ++i) y[i] = x[i] * factor;
}

void axpy(float a, const float* x, int n, float* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] += a * x[i];
}

void silu_mul(const float* gate, const float* up, int n, float* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

void sigmoid_mul(const float* x, float a, const float* gate, int n, float* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = x[i] * a * sigmoid(gate[i]);
}

void rope(float* x, const float* cos, const float* sin) noexcept {
  for (int j = 0; j < kRotary / 2; ++j) {
    const float lo = x[j], hi = x[j + kRotary / 2];
    x[j] = lo * cos[j] - hi * sin[j];
    x[j + kRotary / 2] = hi * cos[j] + lo * sin[j];
  }
}

void narrow(const float* x, int n, uint16_t* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = calla::to_bf16(x[i]).bits;
}

void quantize(const float* x, int n, int8_t* codes, int8_t* rest, float* scales, float* sums) noexcept {
  const float most = rest == nullptr ? 127 : 127 << kRestBits;
  for (int g = 0; g < n / kGroup; ++g, x += kGroup) {
    float top = 0;
    for (int i = 0; i < kGroup; ++i) top = std::max(top, std::abs(x[i]));
    const bool zero = !(top >= kQuantZero);
    const float scale = zero ? 0 : top / most, inverse = zero ? 0 : most / top;
    int sum = 0;
    for (int i = 0; i < kGroup; ++i) {
      const int steps = zero ? 0 : static_cast<int>(std::nearbyint(x[i] * inverse));
      const int at = g * kGroup + i / 2 + i % 2 * (kGroup / 2);
      if (rest == nullptr) {
        codes[at] = static_cast<int8_t>(steps);
      } else {
        const int code = (steps + (1 << (kRestBits - 1))) >> kRestBits;
        codes[at] = static_cast<int8_t>(code);
        rest[at] = static_cast<int8_t>(steps - (code << kRestBits));
      }
      sum += steps;
    }
    scales[g] = scale;
    sums[g] = scale * static_cast<float>(sum);
  }
}

enum class Format { kBf16, kQ8, kQ4 };

// The 64 weights of group g of row r.
template <Format F>
void expand_group(const WeightRows& w, int r, int g, float* v) {
  const uint8_t* row = w.weight + r * w.weight_stride;
  if constexpr (F == Format::kBf16) {
    for (int i = 0; i < kGroup; ++i) v[i] = load_bf16(row, g * kGroup + i);
  } else {
    const float scale = load_bf16(w.scales + r * w.group_stride, g), bias = load_bf16(w.biases + r * w.group_stride, g);
    for (int i = 0; i < kGroup; ++i) {
      const int c = g * kGroup + i;
      const int code = F == Format::kQ8 ? row[c] : (row[c / 2] >> (c % 2 * 4)) & 15;
      v[i] = scale * static_cast<float>(code) + bias;
    }
  }
}

template <Format F>
void expand(const WeightRows& w, int r, float* row) noexcept {
  for (int g = 0; g < w.groups; ++g) expand_group<F>(w, r, g, row + g * kGroup);
}

// Four chains: one would wait for each addition.
double dot(const float* a, const float* b, int n) {
  double sum[4] = {};
  for (int i = 0; i < n; i += 4) {
    for (int j = 0; j < 4; ++j) sum[j] += double{a[i + j]} * b[i + j];
  }
  return sum[0] + sum[1] + sum[2] + sum[3];
}

template <Format F>
void gemv(const WeightRows& w, const float* x, int64_t x_stride, const int32_t* index, int count, float* y,
          int64_t y_stride) noexcept {
  for (int r = 0; r < w.rows; ++r) {
    for (int t = 0; t < count; ++t) {
      double sum = 0;
      for (int g = 0; g < w.groups; ++g) {
        float v[kGroup];
        expand_group<F>(w, r, g, v);
        sum += dot(v, x + index[t] * x_stride + g * kGroup, kGroup);
      }
      y[t * y_stride + r] = static_cast<float>(sum);
    }
  }
}

void dots(const float* w, int rows, const float* x, int64_t x_stride, const int32_t* index, int count, int n, float* y,
          int64_t y_stride) noexcept {
  for (int t = 0; t < count; ++t) {
    for (int r = 0; r < rows; ++r) y[t * y_stride + r] = static_cast<float>(dot(w + r * n, x + index[t] * x_stride, n));
  }
}

// The integer that stands for element `at` of the codes.
int steps_at(const QuantRows& x, int64_t at) {
  return x.rest == nullptr ? x.codes[at] : (x.codes[at] << kRestBits) + x.rest[at];
}

void gemv_q4_int8(const WeightRows& w, const QuantRows& x, const int32_t* index, int count, float* y,
                  int64_t y_stride) noexcept {
  for (int t = 0; t < count; ++t) {
    const int64_t a = index[t] * x.code_stride;
    for (int r = 0; r < w.rows; ++r) {
      const uint8_t* row = w.weight + r * w.weight_stride;
      double sum = 0;
      for (int g = 0; g < w.groups; ++g) {
        int dot = 0;
        for (int i = 0; i < kGroup / 2; ++i) {
          const int byte = row[g * (kGroup / 2) + i];
          dot += (byte & 15) * steps_at(x, a + g * kGroup + i) +
                 (byte >> 4) * steps_at(x, a + g * kGroup + kGroup / 2 + i);
        }
        const int64_t at = index[t] * x.group_stride + g;
        sum += double{load_bf16(w.scales + r * w.group_stride, g)} * x.scales[at] * dot +
               double{load_bf16(w.biases + r * w.group_stride, g)} * x.sums[at];
      }
      y[t * y_stride + r] = static_cast<float>(sum);
    }
  }
}

void expand_tile(const WeightRows& w, WeightTile* tile) noexcept {
  for (int g = 0; g < w.groups; ++g) {
    for (int i = 0; i < kBlockRows; ++i) {
      const int r = std::min(i, w.rows - 1);
      const uint8_t* bytes = w.weight + r * w.weight_stride + g * (kGroup / 2);
      for (int b = 0; b < kGroup / 2; ++b) {
        tile->codes[g][b / 4][i][b % 4] = bytes[b] & 15;
        tile->codes[g][8 + b / 4][i][b % 4] = bytes[b] >> 4;
      }
      tile->scales[g][i] = load_bf16(w.scales + r * w.group_stride, g);
      tile->biases[g][i] = load_bf16(w.biases + r * w.group_stride, g);
    }
  }
}

void tile_product(const WeightTile& tile, int rows, int groups, const QuantRows& x, int first_group,
                  const int32_t* index, int count, bool first, float* y, int64_t y_stride) noexcept {
  for (int t = 0; t < count; ++t) {
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      for (int g = 0; g < groups; ++g) {
        const int64_t a = index[t] * x.code_stride + (first_group + g) * kGroup;
        int dot = 0;
        for (int b = 0; b < kGroup; ++b) dot += tile.codes[g][b / 4][r][b % 4] * steps_at(x, a + b);
        const int64_t at = index[t] * x.group_stride + first_group + g;
        sum += double{tile.scales[g][r]} * x.scales[at] * dot + double{tile.biases[g][r]} * x.sums[at];
      }
      float& out = y[t * y_stride + r];
      out = static_cast<float>(first ? sum : out + sum);
    }
  }
}

void conv_silu(float* x, const float* conv, float* oldest, const float* middle, const float* newest, int n) noexcept {
  for (int c = 0; c < n; ++c) {
    const float* tap = conv + c * kConvTaps;
    const float sum = tap[0] * oldest[c] + tap[1] * middle[c] + tap[2] * newest[c] + tap[3] * x[c];
    oldest[c] = x[c];
    x[c] = sum * sigmoid(sum);
  }
}

void delta_scan(float* S, int64_t s_stride, const float* q, const float* k, const float* kq, const float* v,
                int64_t v_stride, const float* alpha, const float* beta, int count, float* o, int64_t o_stride,
                const float* /*next*/) noexcept {
  for (int t = 0; t < count; ++t) {
    for (int j = 0; j < kScanColumns; ++j) {
      float Sk = 0, Sq = 0;
      for (int d = 0; d < kGdnDim; ++d) {
        Sk += S[d * s_stride + j] * k[t * kGdnDim + d];
        Sq += S[d * s_stride + j] * q[t * kGdnDim + d];
      }
      const float u = beta[t] * (v[t * v_stride + j] - alpha[t] * Sk);
      o[t * o_stride + j] = alpha[t] * Sq + kq[t] * u;
      for (int d = 0; d < kGdnDim; ++d) S[d * s_stride + j] = alpha[t] * S[d * s_stride + j] + k[t * kGdnDim + d] * u;
    }
  }
}

float number(uint16_t bits) {
  return to_f32(bf16{bits});
}
float number(float v) {
  return v;
}

// One query row; neighbouring elements of q and o are `step` apart.
template <class Kv>
void attend_row(const float* q, const Kv* keys, const Kv* values, int visible, float& peak, float& total, float* o,
                int step, float* scores) {
  if (visible == 0) return;
  float top = peak;
  for (int t = 0; t < visible; ++t) {
    double s = 0;
    for (int d = 0; d < kHeadDim; ++d) s += double{q[d * step]} * number(keys[t * kHeadDim + d]);
    scores[t] = static_cast<float>(s);
    top = std::max(top, scores[t]);
  }
  const float shrink = std::exp(peak - top);
  total *= shrink;
  for (int d = 0; d < kHeadDim; ++d) o[d * step] *= shrink;
  for (int t = 0; t < visible; ++t) {
    const float p = std::exp(scores[t] - top);
    total += p;
    for (int d = 0; d < kHeadDim; ++d) o[d * step] += p * number(values[t * kHeadDim + d]);
  }
  peak = top;
}

void attend_page(const float* q, const uint16_t* keys, const uint16_t* values, const uint16_t* /*next_keys*/,
                 const int32_t* visible, int /*span*/, float* peak, float* total, float* o, float* scores) noexcept {
  for (int r = 0; r < kQueryLanes; ++r) {
    attend_row(q + r * kHeadDim, keys, values, visible[r], peak[r], total[r], o + r * kHeadDim, 1, scores);
  }
}

void attend_strip(const float* q, const float* keys, const float* values, const int32_t* visible, int /*span*/,
                  float* peak, float* total, float* o, float* scores) noexcept {
  for (int r = 0; r < kStripLanes; ++r) {
    attend_row(q + r, keys, values, visible[r], peak[r], total[r], o + r, kStripLanes, scores);
  }
}

void exp_all(const float* x, int n, float* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = std::exp(x[i]);
}
void sigmoid_all(const float* x, int n, float* y) noexcept {
  for (int i = 0; i < n; ++i) y[i] = sigmoid(x[i]);
}

}  // namespace

const KernelTable kScalarKernels = {
    .isa = "scalar",
    .tile_rows = kBlockRows,
    .tile_groups = kTileBlocks,
    .rmsnorm = rmsnorm,
    .add_rmsnorm = add_rmsnorm,
    .gated_rmsnorm = gated_rmsnorm,
    .l2norm = l2norm,
    .axpy = axpy,
    .silu_mul = silu_mul,
    .sigmoid_mul = sigmoid_mul,
    .rope = rope,
    .to_bf16 = narrow,
    .quantize = quantize,
    .gemv_bf16 = gemv<Format::kBf16>,
    .gemv_q8 = gemv<Format::kQ8>,
    .gemv_q4 = gemv<Format::kQ4>,
    .expand_bf16 = expand<Format::kBf16>,
    .expand_q8 = expand<Format::kQ8>,
    .expand_q4 = expand<Format::kQ4>,
    .dots = dots,
    .gemv_q4_int8 = gemv_q4_int8,
    .expand_tile = expand_tile,
    .tile_product = tile_product,
    .conv_silu = conv_silu,
    .delta_scan = delta_scan,
    .attend_page = attend_page,
    .attend_strip = attend_strip,
    .exp = exp_all,
    .sigmoid = sigmoid_all,
};

}  // namespace calla
