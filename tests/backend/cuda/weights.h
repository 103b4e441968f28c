#pragma once

// Random matrices as a checkpoint has them, and the same on the device.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "backend/cuda/memory.h"
#include "backend/cuda/rows.h"
#include "backend/cuda/tiles.h"
#include "backend/cuda/types.h"
#include "base/bf16.h"
#include "base/random.h"
#include "ops/linear.h"

namespace calla::cuda::testing {

// Values on the device.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(size_t count)
      : count_(count), memory_(*DeviceMemory::allocate(std::max<size_t>(count, 1) * sizeof(T))) {}
  explicit OnDevice(std::span<const T> values) : OnDevice(values.size()) {
    EXPECT_EQ(cudaMemcpy(data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(std::span<const T>(values)) {}
  T* data() const { return memory_.as<T>(); }
  std::vector<T> values() const {
    std::vector<T> out(count_);
    EXPECT_EQ(cudaMemcpy(out.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

 private:
  size_t count_;
  DeviceMemory memory_;
};

// A matrix of random codes; scales of both signs, a few of them large.
class RandomMatrix {
 public:
  RandomMatrix(Linear::Format format, int out, int in, Random& random)
      : codes_(out * size_t(in) / (format == Linear::Format::kAffine4 ? 2 : 1)),
        scales_(size_t(out) * in / kGroup),
        biases_(scales_.size()) {
    const double levels = format == Linear::Format::kAffine4 ? 15 : 255;
    for (auto& c : codes_) c = static_cast<uint8_t>(random.next());
    for (size_t i = 0; i < scales_.size(); ++i) {
      const double size = random.normal() / levels;
      scales_[i] = to_bf16(static_cast<float>(size));
      biases_[i] = to_bf16(static_cast<float>(-size * levels / 2 + 0.1 * random.normal()));
    }
    linear_ = {format, out, in, bytes(codes_), bytes(scales_), bytes(biases_)};
  }
  RandomMatrix(const RandomMatrix&) = delete;
  const Linear& linear() const { return linear_; }

 private:
  template <class T>
  static const std::byte* bytes(const std::vector<T>& v) {
    return reinterpret_cast<const std::byte*>(v.data());
  }
  std::vector<uint8_t> codes_;
  std::vector<bf16> scales_, biases_;
  Linear linear_;
};

// Copies of matrices in the kernels' order: several of one shape become experts, `step` row tiles apart.
class DeviceMatrix {
 public:
  explicit DeviceMatrix(const Linear& w) : DeviceMatrix(std::vector<const Linear*>{&w}) {}
  explicit DeviceMatrix(const std::vector<const Linear*>& ws, int step = 1)
      : codes_(bytes_of(*ws[0]) * ws.size()), scales_(scale_words(*ws[0]) * ws.size()) {
    const Linear& one = *ws[0];
    const bool tiled = one.format == Linear::Format::kAffine4;
    for (size_t i = 0; i < ws.size(); ++i) {
      const Linear& w = *ws[i];
      const size_t scale_bytes = size_t{2} * w.out * w.groups();
      const OnDevice<std::byte> rows(std::span(w.weight, w.out * w.row_bytes())),
          scales(std::span(w.scales, scale_bytes)), biases(std::span(w.biases, scale_bytes));
      if (tiled) {
        const size_t set = i / step;
        tile_matrix(nullptr, w.out, w.in, rows.data(), scales.data(), biases.data(), static_cast<int>(i % step), step,
                    codes_.data() + set * step * bytes_of(one), scales_.data() + set * step * scale_words(one));
      } else {
        cudaMemcpy(codes_.data(), rows.data(), w.out * w.row_bytes(), cudaMemcpyDeviceToDevice);
        pair_scales(nullptr, scale_bytes / 2, scales.data(), biases.data(), scales_.data());
      }
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    linear_ = {tiled ? DeviceLinear::Format::kAffine4 : DeviceLinear::Format::kAffine8, one.out * step, one.in,
               codes_.data(), scales_.data()};
  }
  const DeviceLinear& linear() const { return linear_; }

 private:
  static size_t bytes_of(const Linear& w) {
    return w.format == Linear::Format::kAffine4 ? tile_sizes(w.out, w.in).code_bytes : w.out * w.row_bytes();
  }
  static size_t scale_words(const Linear& w) {
    return w.format == Linear::Format::kAffine4 ? tile_sizes(w.out, w.in).scale_bytes / sizeof(uint32_t)
                                                : size_t(w.out) * w.groups();
  }
  OnDevice<std::byte> codes_;
  OnDevice<uint32_t> scales_;
  DeviceLinear linear_;
};

// W·x and Σ|W||x| for one row.
struct Sums {
  std::vector<double> value, size;
};
inline Sums product(const Linear& w, std::span<const double> x) {
  Sums y{std::vector<double>(w.out), std::vector<double>(w.out)};
  std::vector<double> row(w.in);
  for (int r = 0; r < w.out; ++r) {
    dequantize_row<double>(w, r, row);
    for (int c = 0; c < w.in; ++c) {
      y.value[r] += row[c] * x[c];
      y.size[r] += std::abs(row[c] * x[c]);
    }
  }
  return y;
}

inline std::vector<float> random_floats(size_t count, Random& random, double scale = 1) {
  std::vector<float> v(count);
  for (float& x : v) x = static_cast<float>(scale * random.normal());
  return v;
}
inline std::vector<double> doubles(std::span<const float> v) {
  return {v.begin(), v.end()};
}

}  // namespace calla::cuda::testing
