#include "quant/affine.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/random.h"

namespace calla {
namespace {

using Group = std::array<float, kGroup>;

double error_of(const Group& w, const AffineGroup& g) {
  double sum = 0;
  for (int i = 0; i < kGroup; ++i) {
    const double e = double(to_f32(g.scale)) * g.codes[i] + double(to_f32(g.bias)) - double(w[i]);
    sum += e * e;
  }
  return sum;
}

// The kernel's steps one by one, as the Metal source has them.
AffineGroup plainly(const Group& w, int bits) {
  const float n_bins = static_cast<float>((1 << bits) - 1);
  float low = 3e38f, high = 0;
  for (const float x : w) {
    low = std::fmin(low, x);
    high = std::fmax(high, x);
  }
  float scale = std::fmax((high - low) / n_bins, 1e-7f);
  const bool side = std::fabs(low) > std::fabs(high);
  scale = side ? scale : -scale;
  const float edge = side ? low : high;
  const float q0 = std::round(edge / scale);
  const bool at_zero = q0 == 0;
  scale = at_zero ? scale : edge / q0;
  const float bias = at_zero ? 0 : edge;
  AffineGroup g{to_bf16(scale), to_bf16(bias), {}};
  for (int i = 0; i < kGroup; ++i) g.codes[i] = uint8_t(std::fmin(std::round((w[i] - bias) / scale), n_bins));
  return g;
}

void expect_same(const AffineGroup& a, const AffineGroup& b) {
  EXPECT_EQ(a.scale.bits, b.scale.bits);
  EXPECT_EQ(a.bias.bits, b.bias.bits);
  for (int i = 0; i < kGroup; ++i) EXPECT_EQ(a.codes[i], b.codes[i]) << i;
}

// Groups as checkpoints hold them, and as nobody would write them.
Group make_group(int kind, Random& random) {
  Group w;
  for (float& x : w) x = static_cast<float>(random.normal());
  switch (kind % 8) {
    case 1:
      for (float& x : w) x *= 1e-3f;
      break;
    case 2:
      for (float& x : w) x = std::abs(x) + 0.1f;
      break;
    case 3:
      for (float& x : w) x = -std::abs(x) - 0.1f;
      break;
    case 4:
      for (float& x : w) x *= 1e-8f;  // below the least scale
      break;
    case 5:
      for (float& x : w) x = std::round(4 * x);  // many halves
      break;
    case 6:
      w[random.below(64)] = 50.0f;
      break;
    case 7:
      w.fill(w[0]);
      break;
    default:
      break;
  }
  for (float& x : w) x = to_f32(to_bf16(x));
  return w;
}

TEST(Affine, FollowsTheRuleToTheBit) {
  Random random(1);
  for (int i = 0; i < 4000; ++i) {
    const Group w = make_group(i, random);
    for (const int bits : {4, 8}) {
      SCOPED_TRACE(testing::Message() << "group " << i << ", " << bits << " bits");
      expect_same(quantize_group(w, bits), plainly(w, bits));
      if (HasFailure()) return;
    }
  }
}

TEST(Affine, ZerosStayZero) {
  const Group w{};
  for (const int bits : {4, 8}) {
    const AffineGroup g = quantize_group(w, bits);
    EXPECT_EQ(error_of(w, g), 0.0);
    EXPECT_EQ(error_of(w, search_group(w, bits)), 0.0);
  }
}

RC_GTEST_PROP(Affine, PackingIsReversible, ()) {
  const int bits = *rc::gen::element(4, 8);
  const auto codes = *rc::gen::container<std::array<uint8_t, kGroup>>(rc::gen::inRange(0, 1 << bits));
  std::array<uint32_t, 16> words{};
  pack_codes(codes, bits, words.data());
  std::array<uint8_t, kGroup> back{};
  unpack_codes(words.data(), bits, back);
  RC_ASSERT(back == codes);
  // Element c of a row lies at bit bits·(c mod (32/bits)) of word c/(32/bits).
  const int c = *rc::gen::inRange(0, kGroup);
  const int per_word = 32 / bits;
  RC_ASSERT(((words[c / per_word] >> (bits * (c % per_word))) & ((1u << bits) - 1)) == codes[c]);
}

TEST(Affine, SearchIsNeverWorseAndUsuallyBetter) {
  Random random(2);
  for (const int bits : {4, 8}) {
    double rule = 0, search = 0;
    for (int i = 0; i < 4000; ++i) {
      const Group w = make_group(i, random);
      const double before = error_of(w, quantize_group(w, bits));
      const double after = error_of(w, search_group(w, bits));
      ASSERT_LE(after, before) << "group " << i << ", " << bits << " bits";
      if (i % 8 == 0) {
        rule += before;
        search += after;
      }
    }
    RecordProperty("mse_ratio_" + std::to_string(bits), std::to_string(search / rule));
    EXPECT_LT(search, 0.9 * rule) << bits << " bits, normal values: the sum of squares must fall by a tenth";
  }
}

// Made with MLX itself; see data/README.md.
TEST(Affine, AgreesWithMlx) {
  std::ifstream file(std::string(CALLA_SOURCE_DIR) + "/tests/quant/data/mlx_quant_fixture.json");
  const auto fixture = nlohmann::json::parse(file);
  int made_again = 0;
  for (const auto& c : fixture["cases"]) {
    const std::string name = c["name"];
    const int bits = c["bits"], cols = c["cols"];
    const auto words = c["codes"].get<std::vector<uint32_t>>();
    const auto scales = c["scales"].get<std::vector<float>>(), biases = c["biases"].get<std::vector<float>>();
    const auto expected = c["expected"].get<std::vector<float>>();
    ASSERT_EQ(cols % kGroup, 0);
    for (size_t g = 0; g < scales.size(); ++g) {
      std::array<uint8_t, kGroup> codes{};
      unpack_codes(&words[g * kGroup * bits / 32], bits, codes);
      for (int i = 0; i < kGroup; ++i) ASSERT_EQ(scales[g] * codes[i] + biases[g], expected[g * kGroup + i]) << name;
      // The inputs of these cases are known; the ramps tell the rounding of halves.
      Group w;
      if (name == "ramp" || name == "q8_ramp") {
        for (int i = 0; i < kGroup; ++i) w[i] = float(i - 32) / 2;
      } else if (name == "const_1x64") {
        w.fill(3.25f);
      } else {
        continue;
      }
      AffineGroup want{to_bf16(scales[g]), to_bf16(biases[g]), {}};
      std::copy(codes.begin(), codes.end(), want.codes);
      SCOPED_TRACE(name);
      expect_same(quantize_group(w, bits), want);
      ++made_again;
    }
  }
  EXPECT_EQ(made_again, 3);
}

}  // namespace
}  // namespace calla
