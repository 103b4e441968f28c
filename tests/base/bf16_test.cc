#include "base/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace calla {
namespace {

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t b = 0; b <= 0xffff; ++b) {
    const bf16 v{static_cast<uint16_t>(b)};
    const float f = to_f32(v);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(to_f32(to_bf16(f))));
    } else {
      EXPECT_EQ(to_bf16(f).bits, b);
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, to_bf16(1.0f).bits);            // tie, even below
  EXPECT_EQ(to_f32(to_bf16(1.0f + 0x3p-8f)), 1.0f + 0x1p-6f);             // tie, even above
  EXPECT_EQ(to_f32(to_bf16(1.0f + 0x1p-8f + 0x1p-20f)), 1.0f + 0x1p-7f);  // just above a tie
  EXPECT_TRUE(std::isinf(to_f32(to_bf16(std::numeric_limits<float>::max()))));
  EXPECT_EQ(to_f32(to_bf16(-std::numeric_limits<float>::infinity())), -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace calla
