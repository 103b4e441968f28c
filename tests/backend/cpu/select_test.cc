#include "backend/cpu/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
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
#elif defined(__aarch64__)
  // The processor's own words; base/cpu.cc asks the kernel.
  uint64_t isar0, isar1;
  asm("mrs %0, ID_AA64ISAR0_EL1" : "=r"(isar0));
  asm("mrs %0, ID_AA64ISAR1_EL1" : "=r"(isar1));
  const bool dotprod = (isar0 >> 44 & 15) != 0, i8mm = (isar1 >> 52 & 15) != 0;
  EXPECT_STREQ((*table)->isa, i8mm ? "neon-i8mm" : dotprod ? "neon" : "scalar");
  EXPECT_EQ(available_tables().size(), 1u + dotprod + i8mm);
#endif
  EXPECT_STREQ(available_tables().back()->isa, "scalar");
}

TEST(Select, ForcesATable) {
  for (const KernelTable* table : available_tables()) EXPECT_EQ(*select_table(table->isa), table);
}

TEST(Select, RefusesWhatTheProcessorCannotRun) {
  const auto tables = available_tables();
  int refused = 0;
  for (const std::string isa : {"amx", "avx512", "avx2", "neon-i8mm", "neon"}) {
    if (std::ranges::any_of(tables, [&](const KernelTable* table) { return table->isa == isa; })) continue;
    const auto table = select_table(isa);
    ASSERT_FALSE(table);
    EXPECT_EQ(table.error().code, Error::Code::kUnsupported);
    EXPECT_NE(table.error().message.find(isa), std::string::npos);
    ++refused;
  }
  EXPECT_GE(refused, 2) << "no processor is of both families";
}

TEST(Select, RefusesWhatItDoesNotKnow) {
  const auto table = select_table("mmx");
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, Error::Code::kInvalid);
  EXPECT_NE(table.error().message.find("\"mmx\""), std::string::npos);
  EXPECT_NE(table.error().message.find("amx, avx512, avx2, neon-i8mm, neon, scalar"), std::string::npos);
}

}  // namespace
}  // namespace calla
