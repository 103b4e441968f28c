#pragma once

#include <cstddef>
#include <memory>

namespace calla {

// A fork-join pool: `run(n, f)` calls f(i) once for every i in [0, n) on the caller and its workers and returns when
// all are done. A thread takes indices one by one from a stretch of its own, so that it walks through memory in order
// (what the processor fetches ahead is then its own), and afterwards from the others' stretches, so that a worker that
// the system takes away delays only the index it holds. Workers pause for 50 µs, yield until 200 µs have passed, then
// sleep, so that the hundreds of regions of one token start quickly and an idle engine uses no processor. One thread at
// a time may call run(); f must not throw.
class Pool {
 public:
  // threads: including the caller, 1 to 64; 0 means cpu_info().cores.
  explicit Pool(int threads = 0);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  int threads() const;

  template <class F>
  void run(int n, const F& f) {
    run_erased(
        n, [](const void* ctx, int i, int) { (*static_cast<const F*>(ctx))(i); }, &f);
  }
  // f(i, thread): thread in [0, threads()), each used by one index at a time (for per-thread scratch).
  template <class F>
  void run_on(int n, const F& f) {
    run_erased(
        n, [](const void* ctx, int i, int t) { (*static_cast<const F*>(ctx))(i, t); }, &f);
  }

 private:
  using Fn = void (*)(const void* ctx, int index, int thread);
  void run_erased(int n, Fn fn, const void* ctx);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace calla
