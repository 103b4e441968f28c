#include "base/cpu.h"
#include "base/memory.h"

#include <gtest/gtest.h>

namespace calla {
namespace {

TEST(Machine, FiguresArePlausible) {
  EXPECT_GE(cpu_info().cores, 1);
  EXPECT_FALSE(cpu_info().name.empty());
  EXPECT_GT(available_memory(), uint64_t{1} << 20);
  EXPECT_LE(available_memory(), total_memory());
  EXPECT_LT(total_memory(), uint64_t{1} << 50);
}

}  // namespace
}  // namespace calla
