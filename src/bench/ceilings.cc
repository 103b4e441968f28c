#include "bench/ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/select.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "ops/linear.h"

namespace calla {
namespace {

template <class F>
double seconds(const F& f) {
  const auto start = Clock::now();
  f();
  return seconds_since(start);
}

// Sums of 64-bit words in several chains: bound by memory, not by the additions. Returned so that the loop is not
// dropped.
uint64_t read_all(const uint64_t* p, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += p[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

// A random matrix in the checkpoint's 4-bit form, a random vector, and their product in f64.
struct Product {
  static constexpr int kRows = 24, kGroups = 5, kCols = kGroups * kGroup;
  std::vector<uint8_t> codes, scales, biases;
  std::vector<float> x;
  std::vector<double> y, bound;  // Σ w·x and Σ |w·x|

  explicit Product(uint64_t seed) {
    Random random(seed);
    codes.resize(size_t{kRows} * kCols / 2);
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random.next());
    const auto put = [](std::vector<uint8_t>& out, double v) {
      const bf16 b = to_bf16(static_cast<float>(v));
      out.push_back(static_cast<uint8_t>(b.bits));
      out.push_back(static_cast<uint8_t>(b.bits >> 8));
    };
    for (int i = 0; i < kRows * kGroups; ++i) {
      put(scales, 0.01 * (0.5 + random.uniform()));
      put(biases, -0.08 * (0.5 + random.uniform()));
    }
    for (int i = 0; i < kCols; ++i) x.push_back(static_cast<float>(random.normal()));
    const auto* bytes = reinterpret_cast<const std::byte*>(codes.data());
    const Linear w{Linear::Format::kAffine4,
                   kRows,
                   kCols,
                   bytes,
                   reinterpret_cast<const std::byte*>(scales.data()),
                   reinterpret_cast<const std::byte*>(biases.data())};
    std::vector<double> row(kCols);
    for (int r = 0; r < kRows; ++r) {
      dequantize_row<double>(w, r, row);
      double sum = 0, magnitude = 0;
      for (int c = 0; c < kCols; ++c) {
        sum += row[c] * x[c];
        magnitude += std::abs(row[c] * x[c]);
      }
      y.push_back(sum);
      bound.push_back(magnitude);
    }
  }
  WeightRows rows() const {
    return {codes.data(), scales.data(), biases.data(), kCols / 2, 2 * kGroups, kRows, kGroups};
  }
};

// The largest error of the results in units of Σ|w·x|, which is what rounding is proportional to.
double worst(const Product& p, const std::vector<float>& got) {
  double largest = 0;
  for (int r = 0; r < Product::kRows; ++r) {
    const double error = std::abs(got[r] - p.y[r]) / p.bound[r];
    largest = error <= largest ? largest : error;  // NaN is the largest
  }
  return largest;
}

}  // namespace

double measure_read_bandwidth(Pool& pool) {
  const size_t bytes = std::min<uint64_t>(512 << 20, available_memory() / 8) / 4096 * 4096;
  if (bytes == 0) return 0;
  const Buffer<uint64_t> buffer(bytes / 8);
  const int slices = 16 * pool.threads();
  const size_t each = buffer.size() / slices;
  std::vector<uint64_t> sums(slices);
  double best = 1e9;
  for (int pass = 0; pass < 3; ++pass) {
    best = std::min(
        best, seconds([&] { pool.run(slices, [&](int i) { sums[i] = read_all(buffer.data() + i * each, each); }); }));
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum == 0 ? static_cast<double>(each * slices * 8) / best : 0;  // the buffer is all zeros
}

Result<double> measure_int8_rate(Pool& pool, const std::string& isa) {
  CALLA_ASSIGN(const KernelTable* table, select_table(isa));
  constexpr int kTokens = 64, kRepeat = 60;
  const int rows = table->tile_rows, groups = table->tile_groups, cols = groups * kGroup;
  struct Work {
    WeightTile tile{};
    std::vector<int8_t> codes;
    std::vector<float> scales, sums, y;
    std::vector<int32_t> index;
  };
  std::vector<std::unique_ptr<Work>> works;
  for (int t = 0; t < pool.threads(); ++t) {
    Work& w = *works.emplace_back(std::make_unique<Work>());
    w.codes.assign(size_t{kTokens} * cols, 1);
    w.scales.assign(size_t{kTokens} * groups, 1);
    w.sums = w.scales;
    w.y.resize(size_t{kTokens} * rows);
    w.index.resize(kTokens);
    std::iota(w.index.begin(), w.index.end(), 0);
  }
  double best = 1e9;
  for (int pass = 0; pass < 5; ++pass) {
    best =
        std::min(best, seconds([&] {
                   pool.run(pool.threads(), [&](int t) {
                     Work& w = *works[t];
                     const QuantRows x{w.codes.data(), nullptr, w.scales.data(), w.sums.data(), cols, groups};
                     for (int i = 0; i < kRepeat; ++i) {
                       table->tile_product(w.tile, rows, groups, x, 0, w.index.data(), kTokens, true, w.y.data(), rows);
                     }
                   });
                 }));
  }
  return double(rows) * cols * kTokens * kRepeat * pool.threads() / best;
}

Result<std::string> test_kernels() {
  const Product p(1);
  const int32_t index = 0;
  std::string report;
  for (const KernelTable* table : available_tables()) {
    std::vector<float> y(Product::kRows);
    table->gemv_q4(p.rows(), p.x.data(), Product::kCols, &index, 1, y.data(), Product::kRows);
    // One rounding for each term and each level of the sum.
    constexpr double kExact = Product::kCols * 0x1p-24;
    const double exact = worst(p, y);
    if (!(exact <= kExact)) {
      return fail(Error::Code::kUnsupported,
                  fmt::format("the {} kernel gemv_q4 is wrong: error {:.1e}, at most {:.1e} expected", table->isa,
                              exact, kExact));
    }
    std::vector<int8_t> codes(Product::kCols);
    std::vector<float> scales(Product::kGroups), sums(Product::kGroups);
    table->quantize(p.x.data(), Product::kCols, codes.data(), nullptr, scales.data(), sums.data());
    table->gemv_q4_int8(p.rows(), {codes.data(), nullptr, scales.data(), sums.data(), Product::kCols, Product::kGroups},
                        &index, 1, y.data(), Product::kRows);
    // Each activation is off by at most half a step, 1/254 of its group's largest, some three times its mean: 2 % of
    // the sum at most.
    constexpr double kInt8 = 0.02;
    const double int8 = worst(p, y);
    if (!(int8 <= kInt8)) {
      return fail(Error::Code::kUnsupported,
                  fmt::format("the {} kernel gemv_q4_int8 is wrong: error {:.1e}, at most {:.1e} expected", table->isa,
                              int8, kInt8));
    }
    report += fmt::format("{}{} right (error {:.0e} in f32, {:.0e} in int8)", report.empty() ? "" : ", ", table->isa,
                          exact, int8);
  }
  return report;
}

}  // namespace calla
