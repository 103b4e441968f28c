#include "backend/cpu/select.h"

#include <gtest/gtest.h>

#include <string>

#include "base/cpu.h"

namespace calla {
namespace {

TEST(Select, TakesTheBestTableThatTheProcessorHas) {
  const auto table = select_table("");
  ASSERT_TRUE(table);
#if defined(__x86_64__)
  const CpuInfo& cpu = cpu_info();
  EXPECT_STREQ((*table)->isa, cpu.amx ? "amx" : cpu.avx512 ? "avx512" : cpu.avx2 ? "avx2" : "scalar");
  EXPECT_EQ(available_tables().size(), 1u + cpu.avx2 + cpu.avx512 + cpu.amx);
#endif
  EXPECT_STREQ(available_tables().back()->isa, "scalar");
}

TEST(Select, ForcesATable) {
  for (const KernelTable* table : available_tables()) EXPECT_EQ(*select_table(table->isa), table);
}

TEST(Select, RefusesWhatItDoesNotKnow) {
  const auto table = select_table("mmx");
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, Error::Code::kInvalid);
  EXPECT_NE(table.error().message.find("\"mmx\""), std::string::npos);
  EXPECT_NE(table.error().message.find("amx, avx512, avx2, scalar"), std::string::npos);
}

}  // namespace
}  // namespace calla
