// The CPU kernels and verbs against the ceilings of this machine, measured in the same run. Counters: GB/s of weights
// and state read, GMAC/s of multiply-adds, tokens/s of the whole model extrapolated from four of its forty layers.
// CALLA_ISA picks a kernel table.
//
//   kernels_bench --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "backend/cpu/ops_cpu.h"
#include "base/pool.h"
#include "base/random.h"
#include "model/forward.h"
#include "model/scratch.h"
#include "model/state.h"
#include "model/weights.h"
#include "table.h"

namespace calla {
namespace {

void rates(benchmark::State& state, double bytes, double macs) {
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  if (bytes > 0) state.counters["GB/s"] = benchmark::Counter(bytes / 1e9, rate);
  if (macs > 0) state.counters["GMAC/s"] = benchmark::Counter(macs / 1e9, rate);
}

// Random bytes of weights: one large piece that all matrices are cut from, so that nothing is read from cache by
// accident.
class Heap {
 public:
  explicit Heap(size_t bytes) : words_(bytes / 8) {
    Random random(1);
    for (uint64_t& w : words_) w = random.next();
  }
  Linear cut(Linear::Format format, int out, int in) {
    Linear w;
    w.format = format;
    w.out = out;
    w.in = in;
    w.weight = take(out * w.row_bytes());
    if (format != Linear::Format::kBf16) {
      w.scales = take(size_t{2} * out * w.groups(), true);
      w.biases = take(size_t{2} * out * w.groups(), true);
    }
    return w;
  }

 private:
  // Small numbers of both signs, as bf16.
  std::byte* take(size_t bytes, bool numbers = false) {
    std::byte* p = reinterpret_cast<std::byte*>(words_.data()) + used_;
    used_ += (bytes + 15) / 8 * 8;
    if (used_ > words_.bytes()) std::abort();
    if (numbers) {
      for (size_t i = 1; i < bytes; i += 2) p[i] = std::byte{0x3b} | (p[i] & std::byte{0x80});
    }
    return p;
  }
  Buffer<uint64_t> words_;
  size_t used_ = 0;
};

// ---- ceilings

void ReadBandwidth(benchmark::State& state) {
  static const Buffer<uint64_t> memory = [] {
    Buffer<uint64_t> b(size_t{1} << 27);
    std::iota(b.begin(), b.end(), 0);
    return b;
  }();
  Pool pool(static_cast<int>(state.range(0)));
  constexpr int kParts = 1024;
  std::vector<uint64_t> sums(kParts);
  const size_t part = memory.size() / kParts;
  for (auto _ : state) {
    pool.run(kParts, [&](int i) {
      uint64_t a = 0, b = 0, c = 0, d = 0;
      for (size_t j = 0; j < part; j += 4) {
        const uint64_t* p = memory.data() + i * part + j;
        a += p[0], b += p[1], c += p[2], d += p[3];
      }
      sums[i] = a + b + c + d;
    });
    benchmark::DoNotOptimize(sums.data());
  }
  rates(state, memory.bytes(), 0);
}
BENCHMARK(ReadBandwidth)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

// ---- kernels

// m tokens with a matrix that fits in no cache, by the routes of the backend. One thread: range(0); tokens: range(1).
void Project(benchmark::State& state) {
  const int threads = static_cast<int>(state.range(0)), m = static_cast<int>(state.range(1));
  static Heap heap(size_t{1200} << 20);
  static const Linear w = heap.cut(Linear::Format::kAffine4, 900'000, 2048);
  const int rows = m == 1 ? w.out : 8192;
  Pool pool(threads);
  ModelConfig config;
  config.hidden = 2048;
  CpuOps op(config, pool, table(), m);
  Buffer<float> x(size_t(m) * 2048), y(size_t(m) * rows);
  Random random(2);
  for (float& v : x) v = static_cast<float>(random.normal());
  int next = 0;
  for (auto _ : state) {
    const Linear part = w.rows(next, rows);
    next = (next + rows) % (w.out - rows + 1);
    op.project({x.data(), m, 2048}, {&part}, {Mat<float>(y.data(), m, rows)});
  }
  rates(state, w.rows(0, rows).bytes(), double(rows) * 2048 * m);
}
BENCHMARK(Project)->ArgsProduct({{1, 2}, {1, 2, 3, 4, 8, 16, 64, 512}})->UseRealTime()->Unit(benchmark::kMillisecond);

// One row block that stays in L2: what the arithmetic of a matrix-vector product alone allows.
void GemvInCache(benchmark::State& state) {
  static Heap heap(1 << 20);
  static const Linear w = heap.cut(Linear::Format::kAffine4, 64, 2048);
  const auto bytes = [](const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); };
  const WeightRows rows = {bytes(w.weight), bytes(w.scales), bytes(w.biases), 1024, 64, 64, 32};
  const int m = static_cast<int>(state.range(0));
  Buffer<int8_t> codes(2 * 2048), rest(2 * 2048);
  Buffer<float> scales(2 * 32), y(2 * 64);
  const QuantRows x = {
      codes.data(), state.range(1) == 2 ? rest.data() : nullptr, scales.data(), scales.data(), 2048, 32};
  const int32_t index[] = {0, 1};
  for (auto _ : state) {
    table().gemv_q4_int8(rows, x, index, m, y.data(), 64);
    benchmark::ClobberMemory();
  }
  rates(state, w.bytes(), 64.0 * 2048 * m);
}
BENCHMARK(GemvInCache)->ArgsProduct({{1, 2}, {1, 2}});  // tokens, planes

// A tile of the table's own shape.
struct TileShape {
  int rows = table().tile_rows, groups = table().tile_groups, cols = groups * kGroup;
};

void ExpandTile(benchmark::State& state) {
  static Heap heap(1 << 20);
  const TileShape shape;
  static const Linear w = heap.cut(Linear::Format::kAffine4, shape.rows, shape.cols);
  const auto bytes = [](const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); };
  const WeightRows rows = {bytes(w.weight),  bytes(w.scales), bytes(w.biases), shape.cols / 2,
                           2 * shape.groups, shape.rows,      shape.groups};
  const auto tile = std::make_unique<WeightTile>();
  for (auto _ : state) {
    table().expand_tile(rows, tile.get());
    benchmark::ClobberMemory();
  }
  rates(state, w.bytes(), 0);
}
BENCHMARK(ExpandTile);

void TileProduct(benchmark::State& state) {
  const int m = static_cast<int>(state.range(0));
  const TileShape shape;
  const auto tile = std::make_unique<WeightTile>();
  std::memset(tile->codes, 1, sizeof tile->codes);
  Buffer<int8_t> codes(size_t(m) * shape.cols), rest(size_t(m) * shape.cols);
  Buffer<float> scales(size_t(m) * shape.groups), y(size_t(m) * shape.rows);
  std::vector<int32_t> index(m);
  std::iota(index.begin(), index.end(), 0);
  const QuantRows x = {codes.data(),  state.range(1) == 2 ? rest.data() : nullptr,
                       scales.data(), scales.data(),
                       shape.cols,    shape.groups};
  for (auto _ : state) {
    table().tile_product(*tile, shape.rows, shape.groups, x, 0, index.data(), m, true, y.data(), shape.rows);
    benchmark::ClobberMemory();
  }
  rates(state, 0, double(shape.rows) * shape.cols * m);
}
BENCHMARK(TileProduct)->ArgsProduct({{1, 2, 5, 8, 16, 128}, {1, 2}});  // tokens, planes

void DeltaScan(benchmark::State& state) {
  const int m = static_cast<int>(state.range(0));
  Buffer<float> S(128 * 128), q(m * 128), k(m * 128), v(m * 128), gate(m), o(m * 128);
  for (auto _ : state) {
    for (int c = 0; c < 128; c += 32) {
      table().delta_scan(S.data() + c * 128, 32, q.data(), k.data(), gate.data(), v.data() + c, 128, gate.data(),
                         gate.data(), m, o.data() + c, 128, S.data());
    }
    benchmark::ClobberMemory();
  }
  rates(state, 0, 3.0 * 128 * 128 * m);
}
BENCHMARK(DeltaScan)->Arg(1)->Arg(64);

void AttendPage(benchmark::State& state) {
  Buffer<uint16_t> keys(64 * 256), values(64 * 256);
  Buffer<float> q(8 * 256), o(8 * 256), peak(8), total(8), scores(512);
  const int32_t visible[8] = {64, 64, 64, 64, 64, 64, 64, 64};
  for (auto _ : state) {
    table().attend_page(q.data(), keys.data(), values.data(), keys.data(), visible, 64, peak.data(), total.data(),
                        o.data(), scores.data());
    benchmark::ClobberMemory();
  }
  rates(state, keys.bytes() + values.bytes(), 2.0 * 8 * 64 * 256);
}
BENCHMARK(AttendPage);

// ---- the model: four of forty layers at the full shape, and a tenth of the head

struct FourLayers {
  static ModelConfig shape() {
    ModelConfig c;
    c.hidden = 2048;
    c.layers = 4;
    c.attends = {false, false, false, true};
    c.vocab = 24832;
    c.heads = 16;
    c.kv_heads = 2;
    c.k_heads = 16;
    c.v_heads = 32;
    c.experts = 256;
    c.top_k = 8;
    c.expert_width = c.shared_width = 512;
    c.max_positions = 262144;
    return c;
  }
  FourLayers() : heap(size_t{2100} << 20) {
    const ModelConfig c = w.config = shape();
    const auto q4 = [&](int out, int in) { return heap.cut(Linear::Format::kAffine4, out, in); };
    const auto q8 = [&](int out, int in) { return heap.cut(Linear::Format::kAffine8, out, in); };
    const auto ones = [](int n) { return std::vector<float>(n, 0.5f); };
    w.tokens = q4(c.vocab, c.hidden);
    w.head = q4(c.vocab, c.hidden);
    w.norm = ones(c.hidden);
    for (int l = 0; l < c.layers; ++l) {
      Layer layer;
      layer.attends = c.attends[l];
      layer.norm1 = layer.norm2 = ones(c.hidden);
      if (layer.attends) {
        layer.attn = {q4(8192, 2048), q4(512, 2048), q4(512, 2048), q4(2048, 4096), ones(256), ones(256)};
      } else {
        layer.gdn = {q4(8192, 2048), q4(4096, 2048), q4(32, 2048), q4(32, 2048), q4(2048, 4096),
                     ones(4 * 8192), ones(32),       ones(32),     ones(128)};
      }
      layer.moe.router = q8(256, 2048);
      layer.moe.shared_gate = q8(1, 2048);
      layer.moe.top_k = 8;
      for (int e = 0; e < 256; ++e) layer.moe.experts.push_back({q4(512, 2048), q4(512, 2048), q4(2048, 512)});
      layer.moe.shared = {q4(512, 2048), q4(512, 2048), q4(2048, 512)};
      w.layers.push_back(std::move(layer));
    }
  }
  double decode_bytes() const {
    double bytes = w.head.bytes();
    for (const Layer& l : w.layers) {
      bytes += l.attends ? l.attn.q.bytes() + l.attn.k.bytes() + l.attn.v.bytes() + l.attn.o.bytes()
                         : l.gdn.qkv.bytes() + l.gdn.z.bytes() + l.gdn.a.bytes() + l.gdn.b.bytes() + l.gdn.out.bytes() +
                               (size_t{4} << 20);
      bytes +=
          l.moe.router.bytes() + 9 * (l.moe.shared.gate.bytes() + l.moe.shared.up.bytes() + l.moe.shared.down.bytes());
    }
    return bytes;
  }
  Heap heap;
  Weights w;
};

// range(0): threads, range(1): tokens of a pass, range(2): position it starts at.
void Model(benchmark::State& state) {
  static FourLayers model;
  const int m = static_cast<int>(state.range(1)), position = static_cast<int>(state.range(2));
  Pool pool(static_cast<int>(state.range(0)));
  CpuOps op(model.w.config, pool, table(), m);
  HostScratch<float> scratch(model.w.config, m, 1);
  const StateShape shape(model.w.config);
  PagePool<bf16> pages(shape.page_size(), (position + m) / kPage + 2);
  CpuOps::State sequence(shape, pages);
  if (!sequence.reserve(0, position + m)) std::abort();
  std::vector<int32_t> ids(m);
  const int32_t wanted[] = {m - 1};
  Run<CpuOps::State> run{&sequence, 0, m, position};
  uint32_t seed = 1;
  scratch.resize(m, 1);
  for (auto _ : state) {
    for (int32_t& id : ids) id = static_cast<int32_t>((seed = seed * 2654435761u + 1) % model.w.config.vocab);
    forward(op, model.w, Batch<CpuOps::State>{ids, {&run, 1}, wanted}, scratch);
  }
  if (m == 1) rates(state, model.decode_bytes(), 0);
  state.counters["tokens/s of 40 layers"] = benchmark::Counter(m / 10.0, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Model)
    ->Args({1, 1, 0})
    ->Args({2, 1, 0})
    ->Args({2, 1, 8192})
    ->Args({2, 128, 0})
    ->Args({2, 512, 0})
    ->Args({2, 2048, 0})
    ->Args({2, 512, 8192})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace calla
