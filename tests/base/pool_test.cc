#include "base/pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace calla {
namespace {

// Threads beyond the cores of the machine, so that workers are taken away in the middle of regions.
class PoolTest : public testing::TestWithParam<int> {};

TEST_P(PoolTest, EveryIndexRunsOnce) {
  Pool pool(GetParam());
  for (int n : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> hits(n);
    pool.run(n, [&](int i) { hits[i].fetch_add(1); });
    for (int i = 0; i < n; ++i) EXPECT_EQ(hits[i].load(), 1) << "index " << i << " of " << n;
  }
}

TEST_P(PoolTest, ManyShortRegionsSeeEachOthersWrites) {
  Pool pool(GetParam());
  std::vector<int> values(32, 0);
  for (int round = 0; round < 5000; ++round) {
    pool.run(32, [&](int i) { values[i] = values[i] + 1; });
  }
  for (int v : values) EXPECT_EQ(v, 5000);
}

TEST_P(PoolTest, ThreadNumbersAreExclusive) {
  Pool pool(GetParam());
  std::vector<std::atomic<int>> inside(pool.threads());
  std::atomic<bool> clash{false};
  pool.run_on(2000, [&](int, int t) {
    if (inside[t].fetch_add(1) != 0) clash = true;
    inside[t].fetch_sub(1);
  });
  EXPECT_FALSE(clash);
}

TEST_P(PoolTest, WakesAfterSleep) {
  Pool pool(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> sum{0};
    pool.run(100, [&](int i) { sum += i; });
    EXPECT_EQ(sum.load(), 4950);
  }
}

// A thread that the system takes away, whichever it is, keeps back no index but its own: the others finish the rest.
TEST_P(PoolTest, AStalledThreadDelaysOnlyItsOwnIndex) {
  Pool pool(GetParam());
  if (pool.threads() == 1) return;  // nobody is left to do the rest
  for (const int stalled : {0, 1, 499, 999}) {
    std::atomic<int> done{0};
    std::atomic<bool> late{false};
    pool.run(1000, [&](int i) {
      if (i == stalled) {
        const auto start = std::chrono::steady_clock::now();
        while (done.load() < 999 && !late) {
          late = std::chrono::steady_clock::now() - start > std::chrono::seconds(60);
          std::this_thread::yield();
        }
      }
      ++done;
    });
    EXPECT_FALSE(late) << stalled;
    EXPECT_EQ(done.load(), 1000);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, PoolTest, testing::Values(1, 2, 3, 8, 64));

TEST(Pool, ClampsThreads) {
  EXPECT_EQ(Pool(1000).threads(), 64);
  EXPECT_GE(Pool(0).threads(), 1);
}

}  // namespace
}  // namespace calla
