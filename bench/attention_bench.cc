// Attention of one layer at the head shape of the 35B model, deep in a context, without its weights. Counters: GB/s of
// keys and values read (what bounds decode), GMAC/s of their products (what bounds prefill). CALLA_ISA picks a kernel
// table.
//
//   attention_bench --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

#include "backend/cpu/ops_cpu.h"
#include "base/pool.h"
#include "base/random.h"
#include "model/state.h"
#include "table.h"

namespace calla {
namespace {

// Ten layers, so that a step of decoding finds nothing of the last one in a cache.
ModelConfig shape() {
  ModelConfig c;
  c.hidden = 2048;
  c.layers = 10;
  c.attends.assign(c.layers, true);
  c.heads = 16;
  c.kv_heads = 2;
  c.k_heads = 16;
  c.v_heads = 32;
  c.experts = 1;
  c.top_k = 1;
  c.expert_width = c.shared_width = 512;
  return c;
}

// range(0): threads, range(1): tokens of a pass, range(2): position it starts at.
void Attend(benchmark::State& state) {
  const int m = static_cast<int>(state.range(1)), position = static_cast<int>(state.range(2));
  const ModelConfig config = shape();
  Pool pool(static_cast<int>(state.range(0)));
  CpuOps op(config, pool, table(), m);
  const StateShape state_shape(config);
  PagePool<bf16> pages(state_shape.page_size(), (position + m) / kPage + 2);
  CpuOps::State sequence(state_shape, pages);
  if (!sequence.reserve(0, position + m)) std::abort();
  Random random(1);
  std::vector<bf16> numbers(kPage * kHeadDim);
  for (bf16& v : numbers) v = to_bf16(static_cast<float>(random.normal()));
  for (int page = 0; page <= (position + m - 1) / kPage; ++page) {
    for (int layer = 0; layer < config.layers; ++layer) {
      for (const int which : {0, 1}) {
        for (int h = 0; h < config.kv_heads; ++h)
          std::copy(numbers.begin(), numbers.end(), sequence.kv(layer, page, which, h));
      }
    }
  }
  Buffer<float> qg(size_t(m) * config.heads * 2 * kHeadDim), kv(size_t(m) * config.kv_heads * kHeadDim),
      o(size_t(m) * config.heads * kHeadDim);
  for (float& v : qg) v = static_cast<float>(random.normal());
  const Run<CpuOps::State> run{&sequence, 0, m, position};
  const Batch<CpuOps::State> batch{{}, {&run, 1}, {}};
  const Mat<float> k(kv.data(), m, config.kv_heads * kHeadDim);
  int layer = 0;
  for (auto _ : state) {
    op.attend({qg.data(), m, config.heads * 2 * kHeadDim}, k, k, batch, layer, {o.data(), m, config.heads * kHeadDim});
    layer = (layer + 1) % config.layers;
  }
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  const double seen = m * (position + (m + 1) / 2.0), row = 2.0 * config.kv_heads * kHeadDim * sizeof(bf16);
  if (m == 1) state.counters["GB/s"] = benchmark::Counter((position + 1) * row / 1e9, rate);
  state.counters["GMAC/s"] = benchmark::Counter(2.0 * config.heads * kHeadDim * seen / 1e9, rate);
}
BENCHMARK(Attend)
    ->ArgsProduct({{1, 2}, {1, 512}, {8192, 32768}})
    ->Args({2, 512, 0})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace calla
