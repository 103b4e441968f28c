#include "base/pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/cpu.h"

namespace calla {
namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The next region of a step usually starts within some microseconds of the last one's end; a sampler or a page of text
// take longer.
constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr auto kYieldTime = std::chrono::microseconds(200);

// Asks `ready` again and again: between pauses, then between yields, so that a thread that is ready to run gets this
// processor. False after kYieldTime, unless `patient`. Time is what counts: a pause takes 10 to 140 cycles.
template <class F>
bool await_busily(bool patient, const F& ready) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      relax();
    }
    const auto waited = std::chrono::steady_clock::now() - start;
    if (waited > kYieldTime && !patient) return false;
    if (waited > kSpinTime) std::this_thread::yield();
  }
}

}  // namespace

// The gate is one word: generation << 16 | open << 15 | workers inside. A region is open while indices remain; a worker
// enters only by a compare-and-swap on an open gate, so one that wakes late stays outside and `job` and `shares` change
// only when nobody is inside.
struct Pool::Impl {
  static constexpr uint64_t kOpen = 1u << 15;
  static constexpr uint64_t kInside = kOpen - 1;
  static constexpr uint64_t kGeneration = 1u << 16;
  struct Job {
    Fn fn = nullptr;
    const void* ctx = nullptr;
  };
  // The indices that one thread begins with: [next, end) are left. Who is done helps the others.
  struct alignas(64) Share {
    std::atomic<int> next{0};
    int end = 0;
  };

  explicit Impl(int threads) : count(threads), shares(threads) {
    for (int t = 1; t < threads; ++t) workers.emplace_back([this, t] { work(t); });
  }
  ~Impl() {
    stop.store(true);
    gate.fetch_add(kGeneration);
    { const std::lock_guard lock(mutex); }
    wake.notify_all();
    for (auto& w : workers) w.join();
  }

  void work(int thread) {
    uint64_t seen = 0;
    for (;;) {
      uint64_t now = await(seen);
      if (stop.load()) return;
      seen = now / kGeneration;
      while ((now & kOpen) != 0 && now / kGeneration == seen) {
        if (!gate.compare_exchange_weak(now, now + 1)) continue;
        drain(thread);
        gate.fetch_sub(1);
        break;
      }
    }
  }

  // Waits for a generation other than `seen`: spins, yields, then sleeps.
  uint64_t await(uint64_t seen) {
    uint64_t now = 0;
    const auto changed = [&] {
      now = gate.load(std::memory_order_acquire);
      return now / kGeneration != seen;
    };
    if (await_busily(false, changed)) return now;
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);
    wake.wait(lock, [&] { return gate.load() / kGeneration != seen; });
    sleepers.fetch_sub(1);
    return gate.load();
  }

  void drain(int thread) {
    for (int t = 0; t < count; ++t) {
      Share& share = shares[(thread + t) % count];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int i = share.next.fetch_add(1, std::memory_order_relaxed);
        if (i < share.end) job.fn(job.ctx, i, thread);
      }
    }
  }

  void run(int n, Fn fn, const void* ctx) {
    job = {fn, ctx};
    for (int t = 0; t < count; ++t) {
      shares[t].next.store(static_cast<int>(int64_t{n} * t / count), std::memory_order_relaxed);
      shares[t].end = static_cast<int>(int64_t{n} * (t + 1) / count);
    }
    gate.store((gate.load() / kGeneration + 1) * kGeneration + kOpen);
    if (sleepers.load() >
        0) {  // both sequentially consistent: a worker about to sleep sees the gate, or is counted here
      const std::lock_guard lock(mutex);
      wake.notify_all();
    }
    drain(0);
    gate.fetch_and(~kOpen);
    await_busily(true, [&] { return (gate.load(std::memory_order_acquire) & kInside) == 0; });
  }

  const int count;
  alignas(64) std::atomic<uint64_t> gate{0};
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  alignas(64) Job job;
  std::vector<Share> shares;
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::thread> workers;
};

Pool::Pool(int threads) {
  if (threads <= 0) threads = cpu_info().cores;
  impl_ = std::make_unique<Impl>(std::clamp(threads, 1, 64));
}

Pool::~Pool() = default;

int Pool::threads() const {
  return impl_->count;
}

void Pool::run_erased(int n, Fn fn, const void* ctx) {
  if (n <= 0) return;
  if (n == 1 || impl_->count == 1) {
    for (int i = 0; i < n; ++i) fn(ctx, i, 0);
    return;
  }
  impl_->run(n, fn, ctx);
}

}  // namespace calla
