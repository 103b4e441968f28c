// The kernels of a step against plain double arithmetic. An input is rounded to f16 (2^-11 relative) before a product;
// the rest is f32: bounds are multiples of Σ|w||x|.

#include "backend/cuda/step.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "tests/backend/cuda/weights.h"

namespace calla::cuda::testing {
namespace {

constexpr double kHalf = 0x1p-11, kEps = 1e-6;
constexpr auto k4 = Linear::Format::kAffine4;
constexpr auto k8 = Linear::Format::kAffine8;

double silu(double t) {
  return t / (1 + std::exp(-t));
}
std::vector<double> normed(std::span<const float> x, std::span<const float> gamma) {
  double sum = 0;
  for (float v : x) sum += double{v} * v;
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / std::sqrt(sum / x.size() + kEps) * gamma[i % gamma.size()];
  return y;
}

struct Shape {
  int in;
  std::vector<int> outs;
};
void PrintTo(const Shape& s, std::ostream* out) {
  *out << s.in << " →";
  for (int o : s.outs) *out << ' ' << o;
}

class StepProducts : public ::testing::TestWithParam<Shape> {
 protected:
  // Runs the kernel on `input` and compares with W·x, where x is what the input stands for.
  void compare(const StepInput& input, std::span<const double> x, bool add) {
    std::vector<std::unique_ptr<RandomMatrix>> matrices;
    std::vector<std::unique_ptr<DeviceMatrix>> devices;
    std::vector<OnDevice<float>> ys;
    std::vector<StepOutput> outputs;
    std::vector<std::vector<float>> before;
    for (int out : GetParam().outs) {
      matrices.push_back(std::make_unique<RandomMatrix>(k4, out, GetParam().in, random_));
      devices.push_back(std::make_unique<DeviceMatrix>(matrices.back()->linear()));
      before.push_back(random_floats(out, random_));
      ys.emplace_back(before.back());
    }
    for (size_t j = 0; j < ys.size(); ++j) outputs.push_back({&devices[j]->linear(), ys[j].data(), add});
    step_products(nullptr, input, outputs);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (size_t j = 0; j < ys.size(); ++j) {
      const Sums want = product(matrices[j]->linear(), x);
      const auto got = ys[j].values();
      for (size_t r = 0; r < got.size(); ++r) {
        ASSERT_NEAR(got[r], want.value[r] + (add ? before[j][r] : 0), 1.1 * kHalf * want.size[r] + 1e-5)
            << "matrix " << j << " row " << r;
      }
    }
  }
  Random random_{7};
};

TEST_P(StepProducts, OfANorm) {
  const auto x = random_floats(GetParam().in, random_, 3), gamma = random_floats(GetParam().in, random_);
  const OnDevice<float> dx(x), dg(gamma);
  compare({StepInput::Kind::kNorm, dx.data(), nullptr, dg.data(), nullptr, kEps}, normed(x, gamma), false);
}
TEST_P(StepProducts, OfHalvesAddedToWhatIsThere) {
  std::vector<__half> x(GetParam().in);
  std::vector<double> want(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = __float2half(static_cast<float>(random_.normal()));
    want[i] = __half2float(x[i]);
  }
  const OnDevice<__half> dx(x);
  StepInput input;
  input.half = dx.data();
  compare(input, want, true);
}
TEST_P(StepProducts, OfAGatedNorm) {
  if (GetParam().in % 128 != 0) return;  // whole heads only
  const auto x = random_floats(GetParam().in, random_), z = random_floats(GetParam().in, random_, 2);
  const auto gamma = random_floats(128, random_);
  const OnDevice<float> dx(x), dz(z), dg(gamma);
  std::vector<double> want;
  for (size_t h = 0; h < x.size(); h += 128) {
    const auto head = normed(std::span(x).subspan(h, 128), gamma);
    for (size_t d = 0; d < 128; ++d) want.push_back(head[d] * silu(z[h + d]));
  }
  compare({StepInput::Kind::kGated, dx.data(), dz.data(), dg.data(), nullptr, kEps}, want, false);
}
INSTANTIATE_TEST_SUITE_P(Shapes, StepProducts,
                         ::testing::Values(Shape{64, {16}}, Shape{64, {1, 33}}, Shape{128, {48, 16, 64}},
                                           Shape{192, {80}}, Shape{512, {2064, 16}}, Shape{2048, {8192, 4096, 32, 32}},
                                           Shape{2048, {2048}}, Shape{2112, {4800}}, Shape{4096, {2048}},
                                           Shape{4160, {64}}, Shape{8192, {96}}, Shape{2048, {50000}}));

struct MoeShape {
  int hidden, experts, top_k, width, shared_width;
};
void PrintTo(const MoeShape& s, std::ostream* out) {
  *out << s.hidden << ' ' << s.experts << ' ' << s.top_k << ' ' << s.width << ' ' << s.shared_width;
}

class StepMoe : public ::testing::TestWithParam<MoeShape> {};

TEST_P(StepMoe, RoutesAndSums) {
  const auto [hidden, experts, top_k, routed_width, shared_width] = GetParam();
  Random random(11);
  const RandomMatrix router(k8, experts, hidden, random), shared_gate(k8, 1, hidden, random);
  std::vector<std::unique_ptr<RandomMatrix>> gates, ups, downs;
  for (int e = 0; e <= experts; ++e) {
    const int width = e < experts ? routed_width : shared_width;
    gates.push_back(std::make_unique<RandomMatrix>(k4, width, hidden, random));
    ups.push_back(std::make_unique<RandomMatrix>(k4, width, hidden, random));
    downs.push_back(std::make_unique<RandomMatrix>(k4, hidden, width, random));
  }
  const auto set = [&](int first, int count, bool down) {
    std::vector<const Linear*> ws;
    for (int e = first; e < first + count; ++e) {
      if (down) {
        ws.push_back(&downs[e]->linear());
      } else {
        ws.insert(ws.end(), {&gates[e]->linear(), &ups[e]->linear()});
      }
    }
    return std::make_unique<DeviceMatrix>(ws, down ? 1 : 2);
  };
  const auto routed_in = set(0, experts, false), routed_out = set(0, experts, true);
  const auto shared_in = set(experts, 1, false), shared_out = set(experts, 1, true);
  const auto experts_of = [&](const DeviceMatrix& in, const DeviceMatrix& out, int count, int width) {
    const TileSizes i = tile_sizes(2 * width, hidden), o = tile_sizes(hidden, width);
    return DeviceExperts{count,        width,         hidden,       in.linear(),  out.linear(),
                         i.code_bytes, i.scale_bytes, o.code_bytes, o.scale_bytes};
  };
  const DeviceExperts routed = experts_of(*routed_in, *routed_out, experts, routed_width),
                      shared = experts_of(*shared_in, *shared_out, 1, shared_width);
  const DeviceMatrix device_router(router.linear()), device_gate(shared_gate.linear());
  const OnDevice<float> logits(experts + 1);
  const OnDevice<__half> h(hidden), inner((top_k + 1) * std::max(routed_width, shared_width));
  const StepExperts e{logits.data(), h.data(), inner.data()};

  for (int round = 0; round < 3; ++round) {
    const auto x = random_floats(hidden, random), gamma = random_floats(hidden, random);
    const auto before = random_floats(hidden, random);
    const OnDevice<float> dx(x), dg(gamma), y(before);
    step_route(nullptr, dx.data(), dg.data(), kEps, device_router.linear(), device_gate.linear(), e);
    step_inner(nullptr, routed, shared, top_k, e);
    step_outer(nullptr, routed, shared, top_k, e, y.data(), true);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

    const auto n = normed(x, gamma);
    const Sums r = product(router.linear(), n), g = product(shared_gate.linear(), n);
    const auto got_logits = logits.values();
    for (int i = 0; i < experts; ++i) ASSERT_NEAR(got_logits[i], r.value[i], 1e-5 * r.size[i] + 1e-6);
    // The choice is judged by the kernel's own logits: two of them may lie within their rounding.
    std::vector<int> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int l, int m) { return got_logits[l] > got_logits[m]; });
    double total = 0;
    for (int k = 0; k < top_k; ++k) {
      total += std::exp(double{got_logits[order[k]]} - got_logits[order[0]]);
    }
    std::vector<double> want(hidden), size(hidden);
    for (int k = 0; k <= top_k; ++k) {
      const int expert = k < top_k ? order[k] : experts;
      const double p = k < top_k ? std::exp(double{got_logits[expert]} - got_logits[order[0]]) / total
                                 : 1 / (1 + std::exp(-g.value[0]));
      const Sums gate = product(gates[expert]->linear(), n), up = product(ups[expert]->linear(), n);
      const int width = gates[expert]->linear().out;
      std::vector<double> in(width), in_size(width);
      for (int i = 0; i < width; ++i) {
        in[i] = silu(gate.value[i]) * up.value[i];
        // silu is steep by at most 1.1.
        in_size[i] =
            1.1 * gate.size[i] * std::abs(up.value[i]) + std::abs(silu(gate.value[i])) * up.size[i] + std::abs(in[i]);
      }
      const Sums out = product(downs[expert]->linear(), in), bound = product(downs[expert]->linear(), in_size);
      for (int c = 0; c < hidden; ++c) {
        want[c] += p * out.value[c];
        size[c] += p * (bound.size[c] + out.size[c]);
      }
    }
    const auto got = y.values();
    for (int c = 0; c < hidden; ++c) ASSERT_NEAR(got[c], before[c] + want[c], 1.2 * kHalf * size[c] + 1e-5) << c;
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, StepMoe,
                         ::testing::Values(MoeShape{64, 2, 2, 64, 64}, MoeShape{128, 8, 2, 64, 128},
                                           MoeShape{192, 33, 4, 128, 64}, MoeShape{256, 512, 16, 64, 64},
                                           MoeShape{2048, 16, 8, 512, 512}, MoeShape{2112, 10, 3, 576, 1152}));

}  // namespace
}  // namespace calla::cuda::testing
