#pragma once

// What the tests of the CPU backend share: buffers with guards and poison, random weights at odd addresses, a small
// model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/select.h"
#include "base/random.h"
#include "formats/config.h"
#include "model/state.h"
#include "model/weights.h"
#include "ops/linear.h"
#include "tests/backend/nmse.h"

namespace calla::testing {

inline constexpr double kUlp = 0x1p-24;  // half a unit in the last place of f32, relative: the error of one rounding

// n elements between two guards; filled with bytes 0xff, which are NaN as floats. `shift` bytes off any alignment.
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t n, size_t shift = 0)
      : n_(n), shift_(shift), bytes_(2 * kGuard + n * sizeof(T) + shift, std::byte{0xff}) {
    std::memset(bytes_.data(), kMark, kGuard + shift_);
    std::memset(bytes_.data() + bytes_.size() - kGuard, kMark, kGuard);
  }
  ~Guarded() {
    const auto marked = [](std::byte b) { return b == std::byte{kMark}; };
    EXPECT_TRUE(std::all_of(bytes_.begin(), bytes_.begin() + kGuard + shift_, marked)) << "written before the buffer";
    EXPECT_TRUE(std::all_of(bytes_.end() - kGuard, bytes_.end(), marked)) << "written past the buffer";
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  T* data() { return reinterpret_cast<T*>(bytes_.data() + kGuard + shift_); }
  T& operator[](size_t i) { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + n_; }
  size_t size() const { return n_; }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kMark = 0xa5;
  size_t n_, shift_;
  std::vector<std::byte> bytes_;
};

inline void fill_normal(Random& random, std::span<float> x, double scale = 1) {
  for (float& v : x) v = static_cast<float>(random.normal() * scale);
}
inline std::vector<float> normals(Random& random, size_t n, double scale = 1) {
  std::vector<float> x(n);
  fill_normal(random, x, scale);
  return x;
}

// A random matrix that owns its bytes, each part at an odd address.
class RandomLinear {
 public:
  RandomLinear(Random& random, Linear::Format format, int out, int in, double scale = 0.05) {
    linear.format = format;
    linear.out = out;
    linear.in = in;
    const size_t groups = size_t(out) * in / kGroup;
    weight_ = std::make_unique<Guarded<uint8_t>>(out * linear.row_bytes(), 1);
    scales_ = std::make_unique<Guarded<uint8_t>>(2 * groups, 1);
    biases_ = std::make_unique<Guarded<uint8_t>>(2 * groups, 1);
    const auto put = [](Guarded<uint8_t>& to, size_t i, double v) {
      const bf16 b = to_bf16(static_cast<float>(v));
      std::memcpy(to.data() + 2 * i, &b, 2);
    };
    if (format == Linear::Format::kBf16) {
      for (size_t i = 0; i < size_t(out) * in; ++i) put(*weight_, i, random.normal() * scale);
    } else {
      const int top = format == Linear::Format::kAffine8 ? 255 : 15;
      for (uint8_t& b : *weight_) b = static_cast<uint8_t>(random.next());
      for (size_t g = 0; g < groups; ++g) {
        const double step = scale * (0.5 + random.uniform()) * 4 / top * (random.next() % 2 ? 1 : -1);
        put(*scales_, g, step);
        put(*biases_, g, -step * top * (0.3 + 0.4 * random.uniform()));
      }
    }
    linear.weight = reinterpret_cast<const std::byte*>(weight_->data());
    linear.scales = reinterpret_cast<const std::byte*>(scales_->data());
    linear.biases = reinterpret_cast<const std::byte*>(biases_->data());
  }
  std::vector<double> row(int r) const {
    std::vector<double> v(linear.in);
    dequantize_row<double>(linear, r, v);
    return v;
  }
  Guarded<uint8_t>& weight_bytes() { return *weight_; }
  Linear linear;

 private:
  std::unique_ptr<Guarded<uint8_t>> weight_, scales_, biases_;
};

inline WeightRows all_rows(const Linear& w) {
  const auto bytes = [](const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); };
  return {bytes(w.weight),         bytes(w.scales), bytes(w.biases), static_cast<int64_t>(w.row_bytes()),
          int64_t{2} * w.groups(), w.out,           w.groups()};
}

// y[t·y_stride + r] = w_r · x_t for every row of w, tile by tile of the table's shape.
inline void product_in_tiles(const KernelTable& k, const Linear& w, const QuantRows& x, const int32_t* index, int count,
                             float* y, int64_t y_stride) {
  const auto tile = std::make_unique<WeightTile>();
  for (int r = 0; r < w.out; r += k.tile_rows) {
    const int rows = std::min(k.tile_rows, w.out - r);
    for (int g = 0; g < w.groups(); g += k.tile_groups) {
      WeightRows part = all_rows(w.rows(r, rows));
      part.weight += g * (kGroup / 2);
      part.scales += 2 * g;
      part.biases += 2 * g;
      part.groups = std::min(k.tile_groups, w.groups() - g);
      k.expand_tile(part, tile.get());
      tile->next = part;  // a hint must change nothing
      k.tile_product(*tile, rows, part.groups, x, g, index, count, g == 0, y + r, y_stride);
    }
  }
}

// Every table that this machine runs.
class EveryTable : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& k = *GetParam();
  Random random{20261130};
};
inline std::string table_name(const ::testing::TestParamInfo<const KernelTable*>& info) {
  std::string name = info.param->isa;
  std::ranges::replace(name, '-', '_');  // GoogleTest wants a word
  return name;
}
#define CALLA_EVERY_TABLE(suite)                                                                               \
  INSTANTIATE_TEST_SUITE_P(, suite, ::testing::ValuesIn(available_tables().begin(), available_tables().end()), \
                           table_name)

// A model of four layers, the last attends; widths that are odd multiples of 64.
inline ModelConfig small_config() {
  ModelConfig c;
  c.hidden = 192;
  c.layers = 4;
  c.attends = {false, false, false, true};
  c.vocab = 301;
  c.heads = 6;
  c.kv_heads = 2;
  c.k_heads = 2;
  c.v_heads = 4;
  c.experts = 12;
  c.top_k = 3;
  c.expert_width = 128;
  c.shared_width = 192;
  c.max_positions = 4096;
  return c;
}

}  // namespace calla::testing
