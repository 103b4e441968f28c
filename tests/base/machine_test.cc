#include "base/cpu.h"
#include "base/memory.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>

#include "base/file.h"
#include "tests/formats/scratch_dir.h"

namespace calla {
namespace {

TEST(Machine, FiguresArePlausible) {
  EXPECT_GE(cpu_info().cores, 1);
  EXPECT_FALSE(cpu_info().name.empty());
  EXPECT_GT(available_memory(), uint64_t{1} << 20);
  EXPECT_LE(available_memory(), total_memory());
  EXPECT_LT(total_memory(), uint64_t{1} << 50);
}

TEST(Machine, AffinityLimitsTheCores) {
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(usable_cores(), 1);
  }).join();
}

// A root folder with the files that the kernel would show.
class Cgroups : public testing::Test {
 protected:
  void put(const std::string& path, const std::string& content) {
    std::filesystem::create_directories((root_ / path).parent_path());
    ASSERT_TRUE(write_file(root_ / path, content));
  }
  double cpus() const { return cgroup_cpus(root_.path()); }
  GroupMemory memory() const { return cgroup_memory(root_.path()); }
  ScratchDir root_;
};

TEST_F(Cgroups, NoFilesOrNoQuotaIsNoLimit) {
  EXPECT_TRUE(std::isinf(cpus()));
  put("proc/self/cgroup", "0::/\n");
  EXPECT_TRUE(std::isinf(cpus()));
  put("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_TRUE(std::isinf(cpus()));
  for (const char* broken : {"", "100000", "x y", "100000 0", "-5 100000"}) {
    put("sys/fs/cgroup/cpu.max", broken);
    EXPECT_TRUE(std::isinf(cpus())) << broken;
  }
}

TEST_F(Cgroups, Version2TakesTheTightestOnTheWayUp) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/cpu.max", "350000 100000\n");
  EXPECT_DOUBLE_EQ(cpus(), 3.5);
  put("sys/fs/cgroup/a/cpu.max", "50000 25000\n");
  EXPECT_DOUBLE_EQ(cpus(), 2);
  put("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(cpus(), 2);
}

// As seen from inside a container: the group of the host has no folder here, the root holds the limit.
TEST_F(Cgroups, AGroupThatCannotBeSeenIsPassedOver) {
  put("proc/self/cgroup", "0::/../host/group\n");
  put("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(cpus(), 1.5);
}

TEST_F(Cgroups, Version1) {
  put("proc/self/cgroup", "5:cpuset:/set\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n0::/docker/x\n");
  put("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
  EXPECT_TRUE(std::isinf(cpus()));
  put("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "400000\n");
  EXPECT_DOUBLE_EQ(cpus(), 4);
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  EXPECT_DOUBLE_EQ(cpus(), 4) << "a quota without its period says nothing";
  put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
  EXPECT_DOUBLE_EQ(cpus(), 2);
}

TEST_F(Cgroups, MemoryIsTheLeastOnTheWayUp) {
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(memory().limit, kNone);
  put("proc/self/cgroup", "0::/service/job\n");
  put("sys/fs/cgroup/service/job/memory.max", "max\n");
  EXPECT_EQ(memory().limit, kNone);
  EXPECT_EQ(memory().left, kNone);
  put("sys/fs/cgroup/service/memory.max", "5000\n");
  put("sys/fs/cgroup/service/memory.stat", "anon 1200\nfile 3000\n");
  EXPECT_EQ(memory().limit, 5000u);
  EXPECT_EQ(memory().left, 3800u) << "what files take can be had back";
  put("sys/fs/cgroup/service/memory.stat", "anon 5001\n");
  EXPECT_EQ(memory().left, 0u);
}

TEST_F(Cgroups, MemoryOfVersion1) {
  put("proc/self/cgroup", "5:cpu:/a\n4:memory:/a/b\n0::/\n");
  put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "7000\n");
  put("sys/fs/cgroup/memory/a/b/memory.stat", "cache 4000\ntotal_rss 100\n");
  put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "6950\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory().limit, 6950u);
  EXPECT_EQ(memory().left, 6900u);
}

}  // namespace
}  // namespace calla
