#include "backend/cuda/ceilings.h"

#include <gtest/gtest.h>

#include <cmath>

namespace calla::cuda::testing {
namespace {

// Not how fast the device is, but that something was measured: no GPU that the kernels run on reads less than 50 GB/s
// or more than 50 TB/s, or multiplies less than 5 or more than 5,000 T/s.
TEST(CudaCeilings, AreWhatAGpuCanHave) {
  const auto ceilings = measure_ceilings();
  ASSERT_TRUE(ceilings) << ceilings.error().message;
  EXPECT_GT(ceilings->read, 5e10);
  EXPECT_LT(ceilings->read, 5e13);
  EXPECT_GT(ceilings->matrix, 5e12);
  EXPECT_LT(ceilings->matrix, 5e15);
}

}  // namespace
}  // namespace calla::cuda::testing
