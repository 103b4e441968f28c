// Products with several rows against plain double arithmetic. Inputs are numbers of f16, so that what remains is the
// rounding of each weight to f16 (2^-11 relative at most, and scales below f16's normal numbers) and sums in f32.

#include "backend/cuda/products.h"

#include <cuda_fp16.h>

#include <memory>

#include "tests/backend/cuda/weights.h"

namespace calla::cuda::testing {
namespace {

constexpr double kHalf = 0x1p-11;
constexpr float kUntouched = 12345;

struct Shape {
  int in;
  std::vector<int> outs;
  std::vector<int> rows;
};
void PrintTo(const Shape& s, std::ostream* out) {
  *out << s.in << " →";
  for (int o : s.outs) *out << ' ' << o;
}

// Matrices, and outputs with columns and a row to spare.
class Case {
 public:
  Case(Linear::Format format, int in, const std::vector<int>& outs, int m, bool add, Random& random)
      : m_(m), add_(add) {
    for (size_t j = 0; j < outs.size(); ++j) {
      matrices_.push_back(std::make_unique<RandomMatrix>(format, outs[j], in, random));
      devices_.push_back(std::make_unique<DeviceMatrix>(matrices_[j]->linear()));
      strides_.push_back(outs[j] + static_cast<int>(j) * 8);
      std::vector<float> y(size_t(m + 1) * strides_[j], kUntouched);
      for (int i = 0; i < m; ++i) {
        for (int o = 0; o < outs[j]; ++o) y[size_t(i) * strides_[j] + o] = static_cast<float>(random.normal());
      }
      before_.push_back(y);
      ys_.emplace_back(y);
      outs_.push_back({devices_[j]->linear(), ys_[j].data(), strides_[j], add});
    }
  }
  std::span<const ProductOut> outs() const { return outs_; }

  // slack: of each output, relative to Σ|w||x|.
  void compare(const std::vector<float>& x, double slack) const {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (size_t j = 0; j < outs_.size(); ++j) {
      const Linear& w = matrices_[j]->linear();
      const auto got = ys_[j].values();
      double error = 0, power = 0;
      std::vector<double> row(w.in);
      for (int o = 0; o < w.out; ++o) {
        dequantize_row<double>(w, o, row);
        for (int i = 0; i < m_; ++i) {
          double value = 0, size = 0;
          for (int c = 0; c < w.in; ++c) {
            const double v = row[c] * x[size_t(i) * w.in + c];
            value += v;
            size += std::abs(v);
          }
          const size_t at = size_t(i) * strides_[j] + o;
          const double want = value + (add_ ? before_[j][at] : 0);
          ASSERT_NEAR(got[at], want, slack * size + 1e-5) << "matrix " << j << " row " << i << " output " << o;
          error += (got[at] - want) * (got[at] - want);
          power += value * value;
        }
      }
      EXPECT_LE(error, slack * slack * power) << "matrix " << j;
      for (size_t at = 0; at < got.size(); ++at) {
        const bool outside = static_cast<int>(at / strides_[j]) == m_ || static_cast<int>(at % strides_[j]) >= w.out;
        if (outside) {
          ASSERT_EQ(got[at], kUntouched) << at;
        }
      }
    }
  }

 private:
  int m_;
  bool add_;
  std::vector<std::unique_ptr<RandomMatrix>> matrices_;
  std::vector<std::unique_ptr<DeviceMatrix>> devices_;
  std::vector<int> strides_;
  std::vector<std::vector<float>> before_;
  std::vector<OnDevice<float>> ys_;
  std::vector<ProductOut> outs_;
};

class CudaProducts : public ::testing::TestWithParam<Shape> {};

TEST_P(CudaProducts, OfSeveralMatrices) {
  Random random{11};
  for (const int m : GetParam().rows) {
    SCOPED_TRACE(m);
    const bool add = m % 2 == 1;
    Case c(Linear::Format::kAffine4, GetParam().in, GetParam().outs, m, add, random);
    std::vector<float> x = random_floats(size_t(m) * GetParam().in, random);
    std::vector<__half> half;
    for (float& v : x) {
      half.push_back(__float2half(v));
      v = __half2float(half.back());
    }
    const OnDevice<__half> input(half);
    products(nullptr, c.outs(), input.data(), m);
    c.compare(x, 1.1 * kHalf);
    if (HasFatalFailure()) return;
  }
}
// Rows at both sides of every tile of tokens and of every kernel; few and many groups, rows of weights that end within
// a tile, matrices that end within a block; 8500 outputs fill any chip with the wide blocks.
INSTANTIATE_TEST_SUITE_P(, CudaProducts,
                         ::testing::Values(Shape{64, {16}, {1, 2, 8, 9, 16, 17}},
                                           Shape{192, {40, 64, 16, 130}, {2, 7, 15, 16, 17, 31, 32, 33, 65}},
                                           Shape{1088, {72, 300}, {2, 16, 33, 64, 65}}, Shape{1088, {4300}, {100}},
                                           Shape{64, {8500, 64}, {2, 15, 16, 17, 33, 255, 256, 300}},
                                           Shape{320, {8500}, {5, 240, 257, 340}}));

class CudaExactProducts : public ::testing::TestWithParam<Shape> {};

TEST_P(CudaExactProducts, KeepWhatTheInputHas) {
  Random random{12};
  for (const int m : GetParam().rows) {
    SCOPED_TRACE(m);
    Case c(Linear::Format::kAffine8, GetParam().in, GetParam().outs, m, m % 2 == 1, random);
    std::vector<float> x = random_floats(size_t(m) * GetParam().in, random, 3);
    for (size_t i = 0; i < x.size(); i += 7) x[i] *= 1e-4f;  // where one f16 has few bits left
    const OnDevice<float> input(x);
    exact_products(nullptr, c.outs(), input.data(), m);
    c.compare(x, 0x1p-20);
    if (HasFatalFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(, CudaExactProducts,
                         ::testing::Values(Shape{64, {8, 1}, {1, 2, 15, 16, 17}}, Shape{1088, {72, 1}, {2, 33}},
                                           Shape{192, {40, 1, 390}, {1439, 1440, 1457}},
                                           Shape{2048, {256, 1}, {2, 40}}));

}  // namespace
}  // namespace calla::cuda::testing
