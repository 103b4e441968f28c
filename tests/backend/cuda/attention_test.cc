// Attention over pages on the device against the reference.

#include "backend/cuda/attention.h"

#include "tests/backend/cuda/sequences.h"

namespace calla::testing {
namespace {

using cuda::Chip;
using cuda::QkNorm;

// One rounding to bf16 errs by 2^-9/√3 in the mean. Queries and new keys err so, which moves a score of standard
// deviation 1 by about 1.1e-3 each, and probabilities err by as much again: three independent errors of 1.1e-3.
constexpr double kBf16 = 1e-5;

ModelConfig config(int heads, int kv_heads) {
  ModelConfig c;
  c.layers = 3;
  c.attends = {true, false, true};
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.k_heads = c.v_heads = 1;
  return c;
}

struct Case {
  Case(Sequences& s, const ModelConfig& c, int rows)
      : m(rows),
        qg(normals(s.random, size_t(rows) * c.heads * 2 * kHeadDim)),
        k(normals(s.random, size_t(rows) * c.kv_heads * kHeadDim)),
        v(normals(s.random, size_t(rows) * c.kv_heads * kHeadDim)),
        q_norm(normals(s.random, kHeadDim, 0.3)),
        k_norm(normals(s.random, kHeadDim, 0.3)),
        device_qg(qg),
        device_k(k),
        device_v(v),
        device_q_norm(q_norm),
        device_k_norm(k_norm),
        o(size_t(rows) * c.heads * kHeadDim) {
    for (auto* gamma : {&q_norm, &k_norm}) {
      for (float& x : *gamma) x += 1;
    }
    device_q_norm.set(q_norm);
    device_k_norm.set(k_norm);
  }
  QkNorm norm(const ModelConfig& c) const {
    return {device_q_norm.data(), device_k_norm.data(), c.norm_eps, cuda::rope_turns(c.rope_theta)};
  }
  // norm_rope and attend of the reference.
  std::vector<double> want(const ModelConfig& c, const Batch<ReferenceOps::State>& b, int layer) const {
    auto q64 = doubles(qg), k64 = doubles(k), v64 = doubles(v);
    std::vector<double> out(size_t(m) * c.heads * kHeadDim);
    const Mat<double> q_rows(q64.data(), m, c.heads * 2 * kHeadDim), k_rows(k64.data(), m, c.kv_heads * kHeadDim),
        v_rows(v64.data(), m, c.kv_heads * kHeadDim), o_rows(out.data(), m, c.heads * kHeadDim);
    ReferenceOps ref(c);
    ref.norm_rope(q_rows, k_rows, q_norm, k_norm, b);
    ref.attend(q_rows, k_rows, v_rows, b, layer, o_rows);
    return out;
  }
  int m;
  std::vector<float> qg, k, v, q_norm, k_norm;
  DeviceArray<float> device_qg, device_k, device_v, device_q_norm, device_k_norm;
  DeviceArray<__half> o;
};

// The pages hold the rows that were appended, and nothing else has changed.
void expect_appended(Sequences& s, const std::vector<uint16_t>& before, const std::vector<Sequences::Rows>& rows,
                     int layer) {
  std::vector<uint16_t> want = before;
  const auto after = s.pool.get();
  for (const auto& r : rows) {
    for (int p = r.position; p < r.position + r.count; ++p) {
      for (const int which : {0, 1}) {
        for (int h = 0; h < s.sizes.kv_heads; ++h) {
          const size_t at = s.offset(s.page(r.sequence, p), layer, which, h) + size_t(p % kPage) * kHeadDim;
          const double* ref = s.ref(r.sequence).kv(layer, p / kPage, which, h) + size_t(p % kPage) * kHeadDim;
          for (int d = 0; d < kHeadDim; ++d) {
            ASSERT_NEAR(to_f32(bf16{after[at + d]}), ref[d], 0x1p-8 * std::abs(ref[d]) + 1e-6)
                << "position " << p << ", dim " << d;
            want[at + d] = after[at + d];
          }
        }
      }
    }
  }
  EXPECT_TRUE(after == want) << "something else in the pages has changed";
}

TEST(CudaAttention, TurnsAreExactAtFarPositions) {
  const auto turns = cuda::rope_turns(1e7);
  for (const int position : {1, 4095, 262143}) {
    for (int j = 0; j < kRotary / 2; ++j) {
      const double angle = position * std::pow(1e7, -2.0 * j / kRotary);
      const double got = static_cast<double>(turns.of[j] * uint64_t(position)) * 0x1p-64 * 2 * M_PI;
      EXPECT_NEAR(std::cos(got), std::cos(angle), 1e-9);
      EXPECT_NEAR(std::sin(got), std::sin(angle), 1e-9);
    }
  }
}

// Positions around the edges of tiles, blocks and pages, alone and as runs of one pass; parts from one to more than
// there is work for; groups of one, of less and of more than the eight heads of a block.
TEST(CudaAttention, StepAtEveryEdge) {
  const int layer = 2;
  for (const auto& [heads, kv_heads] : {std::pair{16, 2}, {6, 2}, {2, 2}, {20, 2}}) {
    const ModelConfig c = config(heads, kv_heads);
    const std::vector<std::vector<int>> passes = {{0},    {1},        {14, 15, 16, 17}, {62, 63, 64, 65, 127, 128, 0},
                                                  {1000}, {511, 3000}};
    for (const auto& positions : passes) {
      for (const int splits : {1, 3, 132}) {
        Sequences s(c, static_cast<int>(positions.size()), 80, 11 * heads + splits);
        std::vector<Sequences::Rows> rows;
        for (size_t i = 0; i < positions.size(); ++i) {
          s.fill(static_cast<int>(i), layer, positions[i]);
          s.reserve(static_cast<int>(i), positions[i] + 1);
          rows.push_back({static_cast<int>(i), 1, positions[i]});
        }
        const int m = static_cast<int>(rows.size());
        Case t(s, c, m);
        const auto before = s.pool.get();
        DeviceArray<float> scratch(cuda::attend_step_scratch(m, heads, splits));
        const auto& runs = s.runs(rows);
        cuda::attend_step(nullptr, t.device_qg.data(), t.device_k.data(), t.device_v.data(), t.norm(c), runs.data(), m,
                          s.sizes, s.shape.slot[layer], s.pool.data(), splits, scratch.data(), t.o.data());
        const auto want = t.want(c, s.batch(), layer);
        EXPECT_LE(nmse(floats(t.o.get()), want), kBf16)
            << heads << " heads, position " << positions[0] << ", " << splits << " splits";
        expect_appended(s, before, rows, layer);
      }
    }
  }
}

// Runs whose tiles of rows, pages and halves of pages end everywhere, behind pasts of all sizes, several in a pass;
// with the tiles of a large and of a small shared memory.
TEST(CudaAttention, RowsAtEveryEdge) {
  const int layer = 0;
  const std::vector<std::vector<Sequences::Rows>> passes = {
      {{0, 1, 0}},
      {{0, 2, 0}},
      {{0, 130, 0}},
      {{0, 64, 64}, {1, 65, 63}},
      {{0, 5, 1000}, {2, 1, 200}, {1, 33, 31}},
      {{2, 15, 0}, {1, 16, 1}, {0, 17, 47}, {3, 48, 128}},
      {{0, 200, 300}},
      {{0, 9, 2500}, {1, 2, 700}},
      {{0, 700, 0}},
  };
  for (const auto& [heads, kv_heads] : {std::pair{16, 2}, {6, 2}, {1, 1}, {20, 2}}) {
    const ModelConfig c = config(heads, kv_heads);
    for (const auto& rows : passes) {
      Sequences s(c, 4, 60, 13 * heads);
      int m = 0;
      for (const auto& r : rows) {
        s.fill(r.sequence, layer, r.position);
        s.reserve(r.sequence, r.position + r.count);
        m += r.count;
      }
      Case t(s, c, m);
      const auto before = s.pool.get();
      const auto& runs = s.runs(rows);
      const int run_count = static_cast<int>(rows.size());
      const auto want = t.want(c, s.batch(), layer);
      for (const Chip& chip : {Chip{227 << 10, true, 132}, Chip{227 << 10, false, 132}, Chip{99 << 10, false, 40}}) {
        if (chip.has_wgmma && !cuda::current_chip().has_wgmma) continue;
        constexpr int kMaxContext = 4096;  // more than the passes have: contexts are cut into more parts than they fill
        DeviceArray<float> scratch(cuda::attend_pass_scratch(run_count, s.sizes, chip.multiprocessors));
        DeviceArray<__half> o(t.o.size());
        cuda::attend_pass(nullptr, t.device_qg.data(), t.device_k.data(), t.device_v.data(), t.norm(c), runs.data(),
                          run_count, m, s.sizes, s.shape.slot[layer], s.pool.data(), o.data(), kMaxContext,
                          scratch.data(), chip);
        EXPECT_LE(nmse(floats(o.get()), want), kBf16)
            << heads << " heads, " << rows[0].count << " rows from " << rows[0].position << ", " << chip.shared_bytes
            << chip.has_wgmma;
        expect_appended(s, before, rows, layer);
      }
    }
  }
}

// A captured launch is replayed while positions grow across tiles, pages and numbers of parts with work.
TEST(CudaAttention, CapturedStepsFollowThePositions) {
  const int layer = 0, splits = 6;
  const ModelConfig c = config(16, 2);
  Sequences s(c, 2, 20, 5);
  std::vector<Sequences::Rows> rows = {{0, 1, 60}, {1, 1, 250}};
  for (const auto& r : rows) {
    s.fill(r.sequence, layer, r.position);
    s.reserve(r.sequence, r.position + 80);
  }
  Case t(s, c, 2);
  DeviceArray<float> scratch(cuda::attend_step_scratch(2, c.heads, splits));
  DeviceArray<cuda::DeviceRun> runs(2);
  runs.set(s.runs(rows).get());
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cuda::attend_step(stream, t.device_qg.data(), t.device_k.data(), t.device_v.data(), t.norm(c), runs.data(), 2,
                    s.sizes, s.shape.slot[layer], s.pool.data(), splits, scratch.data(), t.o.data());
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  for (int step = 0; step < 75; ++step) {
    runs.set(s.runs(rows).get());
    ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    const auto want = t.want(c, s.batch(), layer);
    ASSERT_LE(nmse(floats(t.o.get()), want), kBf16) << "step " << step;
    for (auto& r : rows) ++r.position;
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(CudaAttention, SplitsFillTheDeviceAndNoMore) {
  EXPECT_EQ(cuda::attend_step_splits(1, 2, 131072, 132), 132);
  EXPECT_EQ(cuda::attend_step_splits(1, 2, 64, 132), 1);
  EXPECT_EQ(cuda::attend_step_splits(1, 2, 65, 132), 2);
  EXPECT_EQ(cuda::attend_step_splits(64, 2, 131072, 132), 2);
  EXPECT_EQ(cuda::attend_step_splits(200, 2, 131072, 132), 1);
  EXPECT_EQ(cuda::attend_step_splits(1, 1, 1 << 20, 1000), 256);
}

}  // namespace
}  // namespace calla::testing
