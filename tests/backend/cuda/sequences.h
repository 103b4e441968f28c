#pragma once

// What the tests of the CUDA backend's mixers share: device memory, and sequences whose state lies on the device and in
// the reference side by side.

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "backend/cuda/types.h"
#include "backend/reference/ops_reference.h"
#include "base/bf16.h"
#include "base/random.h"
#include "tests/backend/nmse.h"

namespace calla::testing {

// n elements on the device between guards; filled with bytes 0xff, which are NaN as floats of any width.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : n_(n) {
    EXPECT_EQ(cudaMalloc(&bytes_, 2 * kGuard + n * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemset(bytes_, 0xff, 2 * kGuard + n * sizeof(T)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& v) : DeviceArray(v.size()) { set(v); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    for (const size_t at : {size_t{0}, kGuard + n_ * sizeof(T)}) {
      std::vector<unsigned char> guard(kGuard);
      EXPECT_EQ(cudaMemcpy(guard.data(), bytes_ + at, kGuard, cudaMemcpyDeviceToHost), cudaSuccess);
      EXPECT_TRUE(std::ranges::all_of(guard, [](unsigned char b) { return b == 0xff; })) << "written out of bounds";
    }
    cudaFree(bytes_);
  }
  T* data() const { return reinterpret_cast<T*>(bytes_ + kGuard); }
  size_t size() const { return n_; }
  void set(const std::vector<T>& v) {
    EXPECT_EQ(cudaMemcpy(data(), v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  void zero() { EXPECT_EQ(cudaMemset(data(), 0, n_ * sizeof(T)), cudaSuccess); }
  // Waits for the device.
  std::vector<T> get() const {
    std::vector<T> v(n_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(v.data(), data(), n_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return v;
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t n_;
  char* bytes_ = nullptr;
};

inline std::vector<float> normals(Random& random, size_t n, double scale = 1) {
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(random.normal() * scale);
  return v;
}
inline std::vector<double> doubles(const std::vector<float>& v) {
  return {v.begin(), v.end()};
}
inline std::vector<float> floats(const std::vector<__half>& v) {
  std::vector<float> f;
  for (const __half x : v) f.push_back(__half2float(x));
  return f;
}

// Sequences on the device and in the reference. The pool's pages are handed out in a shuffled order.
class Sequences {
 public:
  struct Rows {
    int sequence, count, position;
  };

  Sequences(const ModelConfig& config, int count, int page_limit, uint64_t seed)
      : random(seed),
        shape(config),
        sizes{config.heads,           config.kv_heads,           config.k_heads,        config.v_heads,
              config.conv_channels(), config.attention_layers(), config.delta_layers(), shape.page_size()},
        pool(page_limit * shape.page_size()),
        ref_pages_(shape.page_size(), page_limit) {
    free_.resize(page_limit);
    std::iota(free_.begin(), free_.end(), 0);
    for (int i = page_limit - 1; i > 0; --i) std::swap(free_[i], free_[random.below(i + 1)]);
    const size_t window = size_t(sizes.delta_layers) * kConvTaps * sizes.channels;
    for (int i = 0; i < count; ++i) {
      auto& s = sequences_.emplace_back(std::make_unique<Sequence>(shape, ref_pages_, page_limit, window));
      s->recurrent.zero();
      s->window.zero();
    }
  }

  // Makes [0, end) addressable.
  void reserve(int sequence, int end) {
    Sequence& s = *sequences_[sequence];
    ASSERT_TRUE(s.ref.reserve(end, end));
    while (static_cast<int>(s.page_list.size()) * kPage < end) {
      ASSERT_FALSE(free_.empty());
      s.page_list.push_back(free_.back());
      free_.pop_back();
    }
    s.pages.set(s.page_list);
  }
  // Random keys and values at positions [0, end) of a layer.
  void fill(int sequence, int layer, int end) {
    reserve(sequence, end);
    Sequence& s = *sequences_[sequence];
    for (int p = 0; p * kPage < end; ++p) {
      const int positions = std::min(kPage, end - p * kPage);
      for (const int which : {0, 1}) {
        for (int h = 0; h < sizes.kv_heads; ++h) {
          std::vector<uint16_t> bits(positions * kHeadDim);
          for (size_t i = 0; i < bits.size(); ++i) {
            const bf16 x = to_bf16(static_cast<float>(random.normal()));
            bits[i] = x.bits;
            s.ref.kv(layer, p, which, h)[i] = to_f32(x);
          }
          EXPECT_EQ(cudaMemcpy(pool.data() + offset(s.page_list[p], layer, which, h), bits.data(), bits.size() * 2,
                               cudaMemcpyHostToDevice),
                    cudaSuccess);
        }
      }
    }
  }
  size_t offset(int page, int layer, int which, int head) const {
    return page * sizes.page_size +
           ((size_t(shape.slot[layer]) * 2 + which) * sizes.kv_heads + head) * kPage * kHeadDim;
  }
  int page(int sequence, int position) const { return sequences_[sequence]->page_list[position / kPage]; }

  // The rows of a pass, for both. The runs stay valid until the next call.
  const DeviceArray<cuda::DeviceRun>& runs(const std::vector<Rows>& rows) {
    std::vector<cuda::DeviceRun> list;
    ref_runs_.clear();
    int row = 0;
    for (const auto& r : rows) {
      Sequence& s = *sequences_[r.sequence];
      list.push_back({row, r.count, r.position, 0, s.pages.data(), s.recurrent.data(), s.window.data()});
      ref_runs_.push_back({&s.ref, row, r.count, r.position});
      row += r.count;
    }
    runs_ = std::make_unique<DeviceArray<cuda::DeviceRun>>(list);
    return *runs_;
  }
  Batch<ReferenceOps::State> batch() const { return {{}, ref_runs_, {}}; }
  ReferenceOps::State& ref(int sequence) { return sequences_[sequence]->ref; }
  const DeviceArray<float>& recurrent(int sequence) const { return sequences_[sequence]->recurrent; }

  Random random;
  StateShape shape;
  cuda::StateSizes sizes;
  DeviceArray<uint16_t> pool;

 private:
  struct Sequence {
    Sequence(const StateShape& shape, PagePool<double>& ref_pages, int page_limit, size_t window_size)
        : ref(shape, ref_pages), pages(page_limit), recurrent(shape.recurrent_size()), window(window_size) {}
    ReferenceOps::State ref;
    std::vector<int32_t> page_list;
    DeviceArray<int32_t> pages;
    DeviceArray<float> recurrent, window;
  };
  PagePool<double> ref_pages_;
  std::vector<int32_t> free_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<Run<ReferenceOps::State>> ref_runs_;
  std::unique_ptr<DeviceArray<cuda::DeviceRun>> runs_;
};

}  // namespace calla::testing
