// Every kernel of every table against plain double arithmetic, with bounds derived from the sums: a dot product of n
// terms in any order errs by at most n·u·Σ|a||b|, u = 2^-24.

#include "tests/backend/cpu/testing.h"

#include <functional>

#include "base/bf16.h"
#include "ops/dims.h"

namespace calla::testing {
namespace {

using Kernels = EveryTable;
CALLA_EVERY_TABLE(Kernels);

double silu(double t) {
  return t / (1 + std::exp(-t));
}
double sigmoid(double t) {
  return 1 / (1 + std::exp(-t));
}

const int kLengths[] = {1, 2, 7, 8, 9, 31, 32, 33, 64, 128, 200, 2048};

TEST_P(Kernels, ExpAndSigmoidKeepTheirErrorBounds) {
  std::vector<float> x;
  for (int i = 0; i < 400000; ++i) x.push_back(static_cast<float>(-87.3 + 175.3 * random.uniform()));
  for (int i = 0; i < 100000; ++i) x.push_back(static_cast<float>(random.normal()));
  for (int i = -87; i <= 88; ++i) x.push_back(static_cast<float>(i));
  std::vector<float> y(x.size());
  k.exp(x.data(), static_cast<int>(x.size()), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(y[i] / std::exp(double{x[i]}) - 1));
  EXPECT_LE(worst, 1.5e-7);
  k.sigmoid(x.data(), static_cast<int>(x.size()), y.data());
  worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(y[i] / sigmoid(x[i]) - 1));
  EXPECT_LE(worst, 3e-7);
}

TEST_P(Kernels, ExpAtTheEnds) {
  const float x[] = {-INFINITY, -1000, -104, 0, NAN};
  float y[5];
  k.exp(x, 5, y);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_LE(y[2], 1e-38);
  EXPECT_EQ(y[3], 1);
  EXPECT_TRUE(std::isnan(y[4]));
  const float far[] = {-200, 200, -INFINITY, INFINITY};
  k.sigmoid(far, 4, y);
  EXPECT_NEAR(y[0], 0, 1e-38);
  EXPECT_EQ(y[1], 1);
  EXPECT_NEAR(y[2], 0, 1e-38);
  EXPECT_EQ(y[3], 1);
}

TEST_P(Kernels, Norms) {
  for (const int n : kLengths) {
    for (const double scale : {1e-6, 1.0, 1e6, 0.0}) {
      const auto x = normals(random, n, scale), gamma = normals(random, n), z = normals(random, n),
                 add = normals(random, n, scale);
      double squares = 0, squares_sum = 0;
      for (int i = 0; i < n; ++i) squares += double{x[i]} * x[i];
      for (int i = 0; i < n; ++i) squares_sum += std::pow(double{x[i] + add[i]}, 2);
      const double inverse = 1 / std::sqrt(squares / n + 1e-6), inverse_sum = 1 / std::sqrt(squares_sum / n + 1e-6);
      const double tolerance = (n / 32 + 16) * kUlp;
      Guarded<float> y(n), gated(n), unit(n), sum(n), h(n);
      k.rmsnorm(x.data(), gamma.data(), 1e-6f, n, y.data());
      k.gated_rmsnorm(x.data(), gamma.data(), z.data(), 1e-6f, n, gated.data());
      k.l2norm(x.data(), 1e-4f, 0.25f, n, unit.data());
      std::ranges::copy(x, sum.begin());
      k.add_rmsnorm(sum.data(), add.data(), gamma.data(), 1e-6f, n, h.data());
      for (int i = 0; i < n; ++i) {
        const double want = x[i] * inverse * gamma[i];
        EXPECT_NEAR(y[i], want, tolerance * std::abs(want)) << n;
        EXPECT_NEAR(gated[i], want * silu(z[i]), tolerance * std::abs(want * silu(z[i])) * 1.5 + 1e-38) << n;
        EXPECT_NEAR(unit[i], 0.25 * x[i] / std::sqrt(squares + 1e-4),
                    tolerance * std::abs(x[i]) / std::sqrt(squares + 1e-4))
            << n;
        EXPECT_EQ(sum[i], x[i] + add[i]);
        EXPECT_NEAR(h[i], double{sum[i]} * inverse_sum * gamma[i],
                    tolerance * std::abs(sum[i] * inverse_sum * gamma[i]))
            << n;
      }
    }
  }
}

TEST_P(Kernels, ElementwiseWithTails) {
  for (const int n : kLengths) {
    const auto x = normals(random, n), gate = normals(random, n, 4);
    Guarded<float> y(n), s(n), g(n);
    std::ranges::copy(gate, y.begin());
    k.axpy(0.5f, x.data(), n, y.data());
    k.silu_mul(gate.data(), x.data(), n, s.data());
    k.sigmoid_mul(x.data(), 3.0f, gate.data(), n, g.data());
    for (int i = 0; i < n; ++i) {
      EXPECT_NEAR(y[i], gate[i] + 0.5 * x[i], 2 * kUlp * (std::abs(gate[i]) + std::abs(x[i])));
      EXPECT_NEAR(s[i], silu(gate[i]) * x[i], 8 * kUlp * std::abs(silu(gate[i]) * x[i]));
      EXPECT_NEAR(g[i], 3 * x[i] * sigmoid(gate[i]), 8 * kUlp * std::abs(3 * x[i] * sigmoid(gate[i])));
    }
  }
}

TEST_P(Kernels, RopeTurnsPairs) {
  Guarded<float> x(kRotary);
  fill_normal(random, {x.data(), size_t{kRotary}});
  const std::vector<float> before(x.begin(), x.end());
  std::vector<float> c(32), s(32);
  for (int j = 0; j < 32; ++j) {
    c[j] = static_cast<float>(std::cos(j * 0.37));
    s[j] = static_cast<float>(std::sin(j * 0.37));
  }
  k.rope(x.data(), c.data(), s.data());
  for (int j = 0; j < 32; ++j) {
    const double lo = before[j], hi = before[j + 32], tolerance = 4 * kUlp * (std::abs(lo) + std::abs(hi));
    EXPECT_NEAR(x[j], lo * c[j] - hi * s[j], tolerance);
    EXPECT_NEAR(x[j + 32], hi * c[j] + lo * s[j], tolerance);
  }
}

TEST_P(Kernels, Bf16RoundsAsTheBaseLibraryDoes) {
  auto x = normals(random, 1000);
  x.insert(x.end(), {0.0f, -0.0f, INFINITY, -INFINITY, 1e-40f, 3.4e38f, 1.00390625f, 1.01171875f});
  Guarded<uint16_t> y(x.size());
  k.to_bf16(x.data(), static_cast<int>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], to_bf16(x[i]).bits) << x[i];
}

TEST_P(Kernels, QuantizeIsWithinHalfAStepAndInOrder) {
  const int groups = 5, n = groups * kGroup;
  for (const double scale : {1.0, 1e-30, 1e30, 1e-40, 0.0}) {
    for (const bool two : {false, true}) {
      auto x = normals(random, n, scale);
      x[70] *= 40;  // an outlier in the second group
      Guarded<int8_t> codes(n), rest(n);
      Guarded<float> scales(groups), sums(groups);
      k.quantize(x.data(), n, codes.data(), two ? rest.data() : nullptr, scales.data(), sums.data());
      for (int g = 0; g < groups; ++g) {
        int sum = 0, most = 0;
        for (int i = 0; i < kGroup; ++i) {
          const int at = g * kGroup + i / 2 + i % 2 * 32;
          EXPECT_GE(codes[at], -127);
          const int steps = two ? (codes[at] << kRestBits) + rest[at] : codes[at];
          sum += steps;
          most = std::max(most, std::abs(steps));
          // Half a step, and what the inverse of the scale loses of the largest.
          const double tolerance = (0.5001 + (two ? 127 << kRestBits : 127) * 2 * kUlp) * scales[g] + kQuantZero;
          EXPECT_NEAR(double{scales[g]} * steps, x[g * kGroup + i], tolerance);
        }
        EXPECT_NEAR(sums[g], double{scales[g]} * sum, 2 * kUlp * std::abs(double{scales[g]} * sum));
        EXPECT_EQ(most, scale < kQuantZero ? 0 : two ? 127 << kRestBits : 127);
      }
    }
  }
}

struct Expected {
  double value, magnitude;  // Σ w·x and Σ (|scale·code| + |bias|)·|x|
  double quantisation;      // Σ |w|·step/2: what int8 activations may cost
};
Expected expect_product(const RandomLinear& w, int r, std::span<const float> x, const float* steps) {
  Expected e{};
  const auto row = w.row(r);
  const Linear& l = w.linear;
  for (int c = 0; c < l.in; ++c) {
    const double bias =
        l.format == Linear::Format::kBf16 ? 0 : std::abs(load_bf16(l.biases, size_t(r) * l.groups() + c / kGroup));
    e.value += row[c] * x[c];
    e.magnitude += (std::abs(row[c] - bias) + 2 * bias) * std::abs(x[c]);
    if (steps != nullptr) e.quantisation += std::abs(row[c]) * steps[c / kGroup] * 0.5001;
  }
  return e;
}

struct Shape {
  int out, in;
};
const Shape kShapes[] = {{1, 64},  {3, 128},  {16, 192}, {17, 448}, {5, 512},
                         {40, 64}, {33, 576}, {36, 320}, {9, 1024}, {20, 1088}};

// Every f32 route: gemv and expanded dot products.
TEST_P(Kernels, ProductsInF32) {
  for (const auto format : {Linear::Format::kBf16, Linear::Format::kAffine8, Linear::Format::kAffine4}) {
    const auto gemv = format == Linear::Format::kBf16      ? k.gemv_bf16
                      : format == Linear::Format::kAffine8 ? k.gemv_q8
                                                           : k.gemv_q4;
    const auto expand = format == Linear::Format::kBf16      ? k.expand_bf16
                        : format == Linear::Format::kAffine8 ? k.expand_q8
                                                             : k.expand_q4;
    for (const auto [out, in] : kShapes) {
      const RandomLinear w(random, format, out, in);
      const int count = 3;
      const auto x = normals(random, size_t(count + 2) * in);
      const int32_t index[] = {4, 0, 2};
      const int64_t stride = out + 3;
      Guarded<float> y(stride * (count - 1) + out), z(stride * (count - 1) + out);
      gemv(all_rows(w.linear), x.data(), in, index, count, y.data(), stride);
      for (int r = 0; r < out; r += 4) {
        const int n = std::min(4, out - r);
        Guarded<float> rows(size_t(n) * in);
        for (int i = 0; i < n; ++i) expand(all_rows(w.linear), r + i, rows.data() + i * in);
        for (int i = 0; i < n; ++i) {
          const auto want = w.row(r + i);
          for (int c = 0; c < in; ++c) EXPECT_NEAR(rows[i * in + c], want[c], 1e-6);
        }
        k.dots(rows.data(), n, x.data(), in, index, count, in, z.data() + r, stride);
      }
      for (int t = 0; t < count; ++t) {
        for (int r = 0; r < out; ++r) {
          const Expected e = expect_product(w, r, {x.data() + size_t(index[t]) * in, size_t(in)}, nullptr);
          const double tolerance = (in / 8 + 10) * kUlp * e.magnitude;
          EXPECT_NEAR(y[t * stride + r], e.value, tolerance) << out << "x" << in;
          EXPECT_NEAR(z[t * stride + r], e.value, tolerance) << out << "x" << in;
        }
      }
    }
  }
}

// Activations in one plane and in two; also at the extremes of codes, where int16 sums are largest.
TEST_P(Kernels, ProductsInInt8) {
  for (const int kind : {0, 1, 2, 3}) {
    const bool extreme = kind % 2 == 1, two = kind / 2 == 1;
    for (const auto [out, in] : kShapes) {
      RandomLinear w(random, Linear::Format::kAffine4, out, in);
      if (extreme) std::ranges::fill(w.weight_bytes(), 0xff);
      const int groups = in / kGroup, count = 11;
      auto x = normals(random, size_t(count + 1) * in);
      if (extreme) std::ranges::fill(x, -3.0f);
      if (extreme && two) {  // the lower plane is at its extreme, −128, for all but one element of a group
        for (size_t i = 0; i < x.size(); ++i) x[i] = i % kGroup == 0 ? 127 : 126.5f;
      }
      const int32_t index[count] = {5, 1, 0, 3, 3, 11, 2, 10, 9, 4, 8};
      Guarded<int8_t> codes(x.size()), rest(x.size());
      Guarded<float> scales(x.size() / kGroup), sums(x.size() / kGroup);
      const QuantRows quant = {codes.data(), two ? rest.data() : nullptr, scales.data(), sums.data(), in, groups};
      for (int t = 0; t <= count; ++t) {
        k.quantize(x.data() + size_t(t) * in, in, codes.data() + size_t(t) * in,
                   two ? rest.data() + size_t(t) * in : nullptr, scales.data() + t * groups, sums.data() + t * groups);
      }
      if (extreme && two) {
        EXPECT_EQ(rest[1], -128);
      }
      const int64_t stride = out + 1;
      Guarded<float> y(stride * (count - 1) + out), z(stride * (count - 1) + out);
      k.gemv_q4_int8(all_rows(w.linear), quant, index, count, y.data(), stride);
      product_in_tiles(k, w.linear, quant, index, count, z.data(), stride);
      for (int t = 0; t < count; ++t) {
        for (int r = 0; r < out; ++r) {
          const Expected e =
              expect_product(w, r, {x.data() + size_t(index[t]) * in, size_t(in)}, scales.data() + index[t] * groups);
          const double tolerance = e.quantisation + (groups + 10) * kUlp * e.magnitude * 1.01;
          EXPECT_NEAR(y[t * stride + r], e.value, tolerance) << out << "x" << in;
          EXPECT_NEAR(z[t * stride + r], e.value, tolerance) << out << "x" << in;
          EXPECT_NEAR(y[t * stride + r], z[t * stride + r], 2 * (groups + 10) * kUlp * e.magnitude * 1.01);
        }
      }
    }
  }
}

// A token gets the same bits alone and in any company, whatever blocks of tokens and rows a kernel cuts.
TEST_P(Kernels, TokensDoNotDependOnTheirNeighbours) {
  const int out = 33, in = 640, most = 19, groups = in / kGroup;
  const RandomLinear w(random, Linear::Format::kAffine4, out, in);
  const auto x = normals(random, size_t(most) * in);
  std::vector<int8_t> codes(x.size()), rest(x.size());
  std::vector<float> scales(x.size() / kGroup), sums(x.size() / kGroup);
  k.quantize(x.data(), most * in, codes.data(), rest.data(), scales.data(), sums.data());
  const QuantRows quant = {codes.data(), rest.data(), scales.data(), sums.data(), in, groups};
  QuantRows coarse = quant;  // as good as any other codes
  coarse.rest = nullptr;
  std::vector<int32_t> index(most);
  std::iota(index.begin(), index.end(), 0);
  std::vector<float> rows(4 * in);
  for (int i = 0; i < 4; ++i) k.expand_q4(all_rows(w.linear), i, rows.data() + i * in);

  using Product = std::function<void(const int32_t* index, int count, float* y)>;
  const Product products[] = {
      [&](const int32_t* i, int count, float* y) { product_in_tiles(k, w.linear, quant, i, count, y, out); },
      [&](const int32_t* i, int count, float* y) { product_in_tiles(k, w.linear, coarse, i, count, y, out); },
      [&](const int32_t* i, int count, float* y) { k.gemv_q4_int8(all_rows(w.linear), quant, i, count, y, out); },
      [&](const int32_t* i, int count, float* y) { k.gemv_q4_int8(all_rows(w.linear), coarse, i, count, y, out); },
      [&](const int32_t* i, int count, float* y) { k.dots(rows.data(), 4, x.data(), in, i, count, in, y, out); },
  };
  std::vector<float> together, alone;
  for (const Product& product : products) {
    together.assign(most * out, 0);
    alone.assign(out, 0);
    for (int count = 1; count <= most; ++count) {
      product(index.data(), count, together.data());
      for (int t = 0; t < count; ++t) {
        product(index.data() + t, 1, alone.data());
        EXPECT_EQ(std::memcmp(alone.data(), together.data() + t * out, sizeof(float) * out), 0) << count;
      }
    }
  }
  // Nor does a row depend on the rows beside it.
  k.gemv_q4_int8(all_rows(w.linear), quant, index.data(), 2, together.data(), out);
  for (int r = 0; r < out; ++r) {
    k.gemv_q4_int8(all_rows(w.linear.rows(r, 1)), quant, index.data(), 2, alone.data(), 1);
    for (int t = 0; t < 2; ++t) EXPECT_EQ(alone[t], together[t * out + r]);
  }
  k.dots(rows.data(), 4, x.data(), in, index.data(), most, in, together.data(), out);
  for (int r = 0; r < 4; ++r) {
    k.dots(rows.data() + r * in, 1, x.data(), in, index.data(), most, in, alone.data(), 1);
    for (int t = 0; t < most; ++t) EXPECT_EQ(alone[t], together[t * out + r]);
  }
}

TEST_P(Kernels, ConvolutionWithTails) {
  for (const int n : {1, 7, 8, 9, 24, 100}) {
    const auto taps = normals(random, size_t(n) * kConvTaps), middle = normals(random, n), newest = normals(random, n);
    Guarded<float> x(n), oldest(n);
    fill_normal(random, {x.data(), x.size()});
    fill_normal(random, {oldest.data(), oldest.size()});
    const std::vector<float> input(x.begin(), x.end()), first(oldest.begin(), oldest.end());
    k.conv_silu(x.data(), taps.data(), oldest.data(), middle.data(), newest.data(), n);
    for (int c = 0; c < n; ++c) {
      const double u[] = {first[c], middle[c], newest[c], input[c]};
      double sum = 0, magnitude = 0;
      for (int j = 0; j < kConvTaps; ++j) {
        sum += taps[4 * c + j] * u[j];
        magnitude += std::abs(taps[4 * c + j] * u[j]);
      }
      EXPECT_NEAR(x[c], silu(sum), 8 * kUlp * magnitude * 1.1 + 8 * kUlp * std::abs(silu(sum)));  // |silu'| ≤ 1.1
      EXPECT_EQ(oldest[c], input[c]);
    }
  }
}

// α down to 1e-12, β up to 1, in place and dense. A column of S has norm at most ‖S₀‖ + √n·max|v|: every step projects,
// decays and adds.
TEST_P(Kernels, DeltaScan) {
  for (const int count : {1, 2, 5, 64}) {
    for (const int64_t s_stride : {int64_t{32}, int64_t{128}}) {
      const int64_t v_stride = 40, o_stride = 36;
      Guarded<float> S(127 * s_stride + 32), o((count - 1) * o_stride + 32);
      fill_normal(random, {S.data(), S.size()}, 0.1);
      auto q = normals(random, size_t(count) * kGdnDim), kk = normals(random, size_t(count) * kGdnDim);
      const auto v = normals(random, count * v_stride);
      std::vector<float> alpha(count), beta(count), kq(count);
      for (int t = 0; t < count; ++t) {
        alpha[t] = t % 3 == 2 ? 1e-12f : static_cast<float>(random.uniform());
        beta[t] = t % 4 == 3 ? 1.0f : static_cast<float>(random.uniform());
        for (std::vector<float>* p : {&q, &kk}) {
          double norm = 0;
          for (int d = 0; d < kGdnDim; ++d) norm += std::pow((*p)[t * kGdnDim + d], 2);
          for (int d = 0; d < kGdnDim; ++d) (*p)[t * kGdnDim + d] /= static_cast<float>(std::sqrt(norm));
        }
        kq[t] =
            static_cast<float>(std::inner_product(&q[t * kGdnDim], &q[t * kGdnDim] + kGdnDim, &kk[t * kGdnDim], 0.0));
      }
      std::vector<double> state(kGdnDim * 32), want(count * 32);
      double largest = 0;
      for (int d = 0; d < kGdnDim; ++d) {
        for (int j = 0; j < 32; ++j) state[d * 32 + j] = S[d * s_stride + j];
      }
      for (const float e : v) largest = std::max(largest, std::abs(double{e}));
      for (int t = 0; t < count; ++t) {
        for (int j = 0; j < 32; ++j) {
          double recalled = 0, out = 0;
          for (int d = 0; d < kGdnDim; ++d) recalled += (state[d * 32 + j] *= double{alpha[t]}) * kk[t * kGdnDim + d];
          const double u = beta[t] * (v[t * v_stride + j] - recalled);
          for (int d = 0; d < kGdnDim; ++d) out += (state[d * 32 + j] += kk[t * kGdnDim + d] * u) * q[t * kGdnDim + d];
          want[t * 32 + j] = out;
        }
      }
      k.delta_scan(S.data(), s_stride, q.data(), kk.data(), kq.data(), v.data(), v_stride, alpha.data(), beta.data(),
                   count, o.data(), o_stride, S.data());
      const double tolerance = 2 * (kGdnDim + 4) * kUlp * count * (3 + std::sqrt(count) * largest);
      for (int j = 0; j < 32; ++j) {
        for (int t = 0; t < count; ++t) EXPECT_NEAR(o[t * o_stride + j], want[t * 32 + j], tolerance);
        for (int d = 0; d < kGdnDim; ++d) EXPECT_NEAR(S[d * s_stride + j], state[d * 32 + j], tolerance);
      }
    }
  }
}

// Both forms of attention: rows of q one after the other, with the page in bf16, and strips of 32 with a page in f32.
// Two pages one after the other: the second rescales the first.
TEST_P(Kernels, AttendPageAndStrip) {
  for (const bool strip : {false, true}) {
    const int lanes = strip ? kStripLanes : kQueryLanes;
    const int lane_step = strip ? 1 : kHeadDim, dim_step = strip ? kStripLanes : 1;
    Guarded<uint16_t> keys(kPage * kHeadDim), values(kPage * kHeadDim);
    Guarded<float> wide_keys(kPage * kHeadDim), wide_values(kPage * kHeadDim);
    for (const int span : {1, 2, 3, 4, 5, 13, 63, 64}) {
      Guarded<float> q(lanes * kHeadDim), peak(lanes), total(lanes), o(lanes * kHeadDim), scores(kPage * lanes);
      fill_normal(random, {q.data(), q.size()}, 0.2);
      std::ranges::fill(peak, -INFINITY);
      std::ranges::fill(total, 0.0f);
      std::ranges::fill(o, 0.0f);
      std::vector<int32_t> visible(lanes);
      for (int r = 0; r < lanes; ++r) visible[r] = std::max(0, span - r);  // some rows see nothing
      std::vector<double> sums(lanes * kHeadDim), totals(lanes);
      for (int page = 0; page < 2; ++page) {
        for (size_t i = 0; i < keys.size(); ++i) {
          // Rows past `span` hold NaN: they may be read but never counted.
          const bool live = static_cast<int>(i) / kHeadDim < span;
          keys[i] = live ? to_bf16(static_cast<float>(random.normal())).bits : 0x7fff;
          values[i] = live ? to_bf16(static_cast<float>(random.normal())).bits : 0x7fff;
          wide_keys[i] = to_f32(bf16{keys[i]});
          wide_values[i] = to_f32(bf16{values[i]});
        }
        if (strip) {
          k.attend_strip(q.data(), wide_keys.data(), wide_values.data(), visible.data(), span, peak.data(),
                         total.data(), o.data(), scores.data());
        } else {
          k.attend_page(q.data(), keys.data(), values.data(), keys.data(), visible.data(), span, peak.data(),
                        total.data(), o.data(), scores.data());
        }
        for (int r = 0; r < lanes; ++r) {
          for (int t = 0; t < visible[r]; ++t) {
            double s = 0;
            for (int d = 0; d < kHeadDim; ++d) {
              s += double{q[r * lane_step + d * dim_step]} * wide_keys[t * kHeadDim + d];
            }
            totals[r] += std::exp(s);
            for (int d = 0; d < kHeadDim; ++d) sums[r * kHeadDim + d] += std::exp(s) * wide_values[t * kHeadDim + d];
          }
        }
      }
      for (int r = 0; r < lanes; ++r) {
        if (visible[r] == 0) {
          EXPECT_EQ(total[r], 0);
          continue;
        }
        // A score errs by at most 68u·Σ|q||k| (chains of 64, four of them added), and Σ|q||k| is about 256·0.2·0.64;
        // p errs by e to that; the rest is a convex sum of |v| ≤ 5.
        const double tolerance = 5 * (2 * 68 * kUlp * 256 * 0.2 + 200 * kUlp);
        for (int d = 0; d < kHeadDim; ++d) {
          EXPECT_NEAR(o[r * lane_step + d * dim_step] / total[r], sums[r * kHeadDim + d] / totals[r], tolerance)
              << (strip ? "strip " : "page ") << span;
        }
      }
    }
  }
}

// A query row gets the same bits alone and beside others.
TEST_P(Kernels, AttendedRowsDoNotDependOnTheirNeighbours) {
  constexpr int kSpan = 37;
  const auto q = normals(random, size_t{kQueryLanes} * kHeadDim);
  std::vector<uint16_t> keys(kPage * kHeadDim), values(kPage * kHeadDim);
  for (uint16_t& bits : keys) bits = to_bf16(static_cast<float>(0.1 * random.normal())).bits;
  for (uint16_t& bits : values) bits = to_bf16(static_cast<float>(random.normal())).bits;
  struct Sums {
    std::vector<float> peak = std::vector<float>(kQueryLanes, -INFINITY), total = std::vector<float>(kQueryLanes),
                       o = std::vector<float>(kQueryLanes * kHeadDim);
  };
  std::vector<float> scores(kPage * kQueryLanes);
  const auto attend = [&](int rows) {
    Sums sums;
    int32_t visible[kQueryLanes] = {};
    std::fill_n(visible, rows, kSpan);
    for (int page = 0; page < 2; ++page) {
      k.attend_page(q.data(), keys.data(), values.data(), keys.data(), visible, kSpan, sums.peak.data(),
                    sums.total.data(), sums.o.data(), scores.data());
    }
    return sums;
  };
  const Sums all = attend(kQueryLanes);
  for (int rows = 1; rows < kQueryLanes; ++rows) {
    const Sums some = attend(rows);
    EXPECT_EQ(std::memcmp(some.peak.data(), all.peak.data(), sizeof(float) * rows), 0) << rows;
    EXPECT_EQ(std::memcmp(some.total.data(), all.total.data(), sizeof(float) * rows), 0) << rows;
    EXPECT_EQ(std::memcmp(some.o.data(), all.o.data(), sizeof(float) * rows * kHeadDim), 0) << rows;
  }
}

}  // namespace
}  // namespace calla::testing
