// The mixture of experts of several rows: the choice against a sort, slots and tiles against their definition, products
// against plain double arithmetic.

#include "backend/cuda/experts.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "tests/backend/cuda/weights.h"

namespace calla::cuda::testing {
namespace {

constexpr double kHalf = 0x1p-11;

double silu(double t) {
  return t / (1 + std::exp(-t));
}

// A routing with its memory, and host copies of it.
struct Routed {
  Routed(int max_rows, int experts, int top_k) : memory(size_of(max_rows, experts, top_k)) {
    Arena arena(memory.data());
    r = Routing::take(arena, max_rows, experts, top_k);
  }
  static size_t size_of(int max_rows, int experts, int top_k) {
    Arena sizes;
    Routing::take(sizes, max_rows, experts, top_k);
    return sizes.used();
  }
  template <class T>
  static std::vector<T> copy(const T* from, size_t count) {
    std::vector<T> v(count);
    EXPECT_EQ(cudaMemcpy(v.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return v;
  }
  void choose(const std::vector<float>& router, const std::vector<float>& shared) {
    m = static_cast<int>(shared.size());
    const OnDevice<float> a(router), b(shared);
    choose_experts(nullptr, a.data(), b.data(), m, r);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    chosen = copy(r.chosen, size_t(m) * r.top_k);
    weight = copy(r.weight, size_t(m) * (r.top_k + 1));
    slot_of = copy(r.slot_of, size_t(m) * r.top_k);
    slot_token = copy(r.slot_token, size_t(m) * (r.top_k + 1));
    tiles = copy(r.tiles, copy(r.tile_count, 1)[0]);
  }
  OnDevice<std::byte> memory;
  Routing r;
  int m = 0;
  std::vector<int32_t> chosen, slot_of, slot_token;
  std::vector<float> weight;
  std::vector<ExpertTile> tiles;
};

void check_choice(const Routed& at, const std::vector<float>& router, const std::vector<float>& shared) {
  const int experts = at.r.experts, top_k = at.r.top_k, m = at.m;
  std::vector<std::vector<int>> tokens(experts + 1);
  for (int i = 0; i < m; ++i) {
    const float* const logits = router.data() + size_t(i) * experts;
    std::vector<int> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int a, int b) { return logits[a] > logits[b]; });
    double total = 0;
    for (int k = 0; k < top_k; ++k) total += std::exp(double{logits[order[k]]} - logits[order[0]]);
    for (int k = 0; k < top_k; ++k) {
      ASSERT_EQ(at.chosen[i * top_k + k], order[k]) << "token " << i << " choice " << k;
      ASSERT_NEAR(at.weight[i * (top_k + 1) + k], std::exp(double{logits[order[k]]} - logits[order[0]]) / total, 1e-5);
      tokens[order[k]].push_back(i);
    }
    ASSERT_NEAR(at.weight[i * (top_k + 1) + top_k], 1 / (1 + std::exp(-double{shared[i]})), 1e-6);
    tokens[experts].push_back(i);
  }
  std::vector<int> sorted, first(experts + 2);
  for (int e = 0; e <= experts; ++e) {
    first[e] = static_cast<int>(sorted.size());
    sorted.insert(sorted.end(), tokens[e].begin(), tokens[e].end());
  }
  first[experts + 1] = static_cast<int>(sorted.size());
  ASSERT_EQ(at.slot_token, sorted);
  for (int i = 0; i < m * top_k; ++i) {
    const int slot = at.slot_of[i], e = at.chosen[i];
    ASSERT_EQ(sorted[slot], i / top_k);
    ASSERT_TRUE(slot >= first[e] && slot < first[e + 1]) << slot;
  }
  std::vector<int> covered(sorted.size());
  for (const ExpertTile& tile : at.tiles) {
    ASSERT_TRUE(tile.count >= 1 && tile.count <= 128);
    ASSERT_TRUE(tile.first >= first[tile.expert] && tile.first + tile.count <= first[tile.expert + 1]);
    for (int s = 0; s < tile.count; ++s) ++covered[tile.first + s];
  }
  ASSERT_EQ(covered, std::vector<int>(sorted.size(), 1));
}

// One expert that all want, one that none does, equal logits, and normal ones.
std::vector<float> router_logits(int m, int experts, Random& random) {
  std::vector<float> v = random_floats(size_t(m) * experts, random, 2);
  for (int i = 0; i < m; ++i) {
    v[size_t(i) * experts] = 20;
    v[size_t(i) * experts + experts / 2] = -20;
    if (i % 3 == 1) std::ranges::fill(v.begin() + size_t(i) * experts, v.begin() + size_t(i + 1) * experts, -1.5f);
  }
  return v;
}

TEST(CudaExperts, ChoiceAndSlots) {
  Random random{21};
  for (const auto& [experts, top_k] : std::vector<std::pair<int, int>>{{2, 2}, {8, 2}, {256, 8}, {500, 16}}) {
    Routed at(700, experts, top_k);
    for (const int m : {1, 2, 31, 32, 33, 64, 100, 257, 700}) {
      SCOPED_TRACE(::testing::Message() << experts << " experts, " << m << " rows");
      const auto router = router_logits(m, experts, random), shared = random_floats(m, random, 2);
      at.choose(router, shared);
      check_choice(at, router, shared);
      if (HasFatalFailure()) return;
    }
  }
}

struct Shape {
  int hidden, width, shared_width, experts, top_k;
  std::vector<int> rows;
};
void PrintTo(const Shape& s, std::ostream* out) {
  *out << s.hidden << " → " << s.width << ", " << s.top_k << " of " << s.experts;
}

class CudaExpertProducts : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    const auto [hidden, width, shared_width, experts, top_k, rows] = GetParam();
    for (int e = 0; e <= experts; ++e) {
      const int own = e < experts ? width : shared_width;
      for (auto* list : {&gates_, &ups_}) {
        list->push_back(std::make_unique<RandomMatrix>(Linear::Format::kAffine4, own, hidden, random_));
      }
      downs_.push_back(std::make_unique<RandomMatrix>(Linear::Format::kAffine4, hidden, own, random_));
    }
    routed_ = put(0, experts, width);
    shared_ = put(experts, experts + 1, shared_width);
  }
  // Experts [from, to) on the device.
  DeviceExperts put(int from, int to, int width) {
    std::vector<const Linear*> first, second;
    for (int e = from; e < to; ++e) {
      first.push_back(&gates_[e]->linear());
      first.push_back(&ups_[e]->linear());
      second.push_back(&downs_[e]->linear());
    }
    device_.push_back(std::make_unique<DeviceMatrix>(first, 2));
    device_.push_back(std::make_unique<DeviceMatrix>(second));
    const int hidden = GetParam().hidden;
    const TileSizes a = tile_sizes(2 * width, hidden), b = tile_sizes(hidden, width);
    return {to - from,
            width,
            hidden,
            device_[device_.size() - 2]->linear(),
            device_.back()->linear(),
            a.code_bytes,
            a.scale_bytes,
            b.code_bytes,
            b.scale_bytes};
  }
  Random random_{22};
  std::vector<std::unique_ptr<RandomMatrix>> gates_, ups_, downs_;
  std::vector<std::unique_ptr<DeviceMatrix>> device_;
  DeviceExperts routed_, shared_;
};

std::vector<double> doubles_of(const std::vector<__half>& v, size_t from, int count) {
  std::vector<double> x(count);
  for (int c = 0; c < count; ++c) x[c] = __half2float(v[from + c]);
  return x;
}

TEST_P(CudaExpertProducts, OfAllSlots) {
  const auto [hidden, width, shared_width, experts, top_k, rows] = GetParam();
  for (const int m : rows) {
    SCOPED_TRACE(m);
    Routed at(m, experts, top_k);
    at.choose(router_logits(m, experts, random_), random_floats(m, random_));
    std::vector<__half> h(size_t(m) * hidden);
    for (auto& v : h) v = __float2half(static_cast<float>(random_.normal() * 0.2));
    const OnDevice<__half> input(h);
    const size_t slots = size_t(m) * (top_k + 1);
    const OnDevice<__half> inner(size_t(m) * (top_k * width + shared_width)), partial(slots * hidden);
    const auto before = random_floats(size_t(m) * hidden, random_);
    const OnDevice<float> y(before), again(before);
    experts_inner(nullptr, routed_, shared_, input.data(), m, at.r, inner.data());
    experts_outer(nullptr, routed_, shared_, inner.data(), m, at.r, partial.data(), y.data(), true);
    experts_inner(nullptr, routed_, shared_, input.data(), m, at.r, inner.data());
    experts_outer(nullptr, routed_, shared_, inner.data(), m, at.r, partial.data(), again.data(), false);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto got_inner = inner.values();
    const auto got = y.values(), without = again.values();

    for (int i = 0; i < m; ++i) {
      std::vector<double> sum(hidden), slack(hidden);
      for (int k = 0; k <= top_k; ++k) {
        const int e = k < top_k ? at.chosen[i * top_k + k] : experts;
        const size_t slot = k < top_k ? at.slot_of[i * top_k + k] : 0;
        const auto x = doubles_of(h, size_t(i) * hidden, hidden);
        const Sums gate = product(gates_[e]->linear(), x), up = product(ups_[e]->linear(), x);
        const int own = e < experts ? width : shared_width;
        const size_t start = e < experts ? slot * width : size_t(m) * top_k * width + size_t(i) * shared_width;
        const auto z = doubles_of(got_inner, start, own);
        for (int c = 0; c < own; ++c) {
          // |silu'| ≤ 1.1; the result is rounded once more.
          const double want = silu(gate.value[c]) * up.value[c], eg = 1.1 * kHalf * gate.size[c] + 1e-6,
                       eu = 1.1 * kHalf * up.size[c] + 1e-6;
          const double bound = 1.1 * eg * (std::abs(up.value[c]) + eu) + std::abs(silu(gate.value[c])) * eu +
                               kHalf * std::abs(want) + 1e-5;
          ASSERT_NEAR(z[c], want, bound) << "token " << i << " choice " << k << " expert " << e << " value " << c;
        }
        const Sums out = product(downs_[e]->linear(), z);
        const double weight = at.weight[i * (top_k + 1) + k];
        for (int c = 0; c < hidden; ++c) {
          sum[c] += weight * out.value[c];
          slack[c] += weight * (1.1 * kHalf * out.size[c] + kHalf * std::abs(out.value[c]));
        }
      }
      for (int c = 0; c < hidden; ++c) {
        const size_t at_y = size_t(i) * hidden + c;
        ASSERT_NEAR(without[at_y], sum[c], slack[c] + 1e-5) << "token " << i << " column " << c;
        ASSERT_EQ(got[at_y], before[at_y] + without[at_y]);
      }
    }
  }
}
// Tiles of 16 slots, and of 64 or 128 with more rows; experts with no tokens and with all; a shared expert that is
// wider, and narrower; rows of weights that end within a block.
INSTANTIATE_TEST_SUITE_P(, CudaExpertProducts,
                         ::testing::Values(Shape{64, 64, 64, 8, 2, {1, 2, 17, 32, 33, 150, 250}},
                                           Shape{128, 192, 64, 8, 2, {9, 33, 150}},
                                           Shape{192, 128, 192, 4, 4, {2, 7, 8, 9, 65}},
                                           Shape{320, 128, 64, 16, 8, {2, 10, 16, 17, 70, 140}}));

}  // namespace
}  // namespace calla::cuda::testing
