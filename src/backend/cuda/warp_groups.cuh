#pragma once

// Products of tile_product.cuh on Hopper's tensor cores, whose full speed only groups of four warps reach: wgmma, with
// weights from registers and activations from shared memory. Only files that end in _sm90.cu may make kernels of it.

#include "backend/cuda/tile_product.cuh"
#include "backend/cuda/wgmma.cuh"

namespace calla::cuda {

// As Cut. A group of four warps has four times kRowTiles row tiles; four more warps fill the ring for all.
template <int kRowTiles_, int kTokenTiles_, int kRowWarps_, int kSplit_, int kStages_>
struct GroupCut : Cut<kRowTiles_, kTokenTiles_, kRowWarps_, kSplit_, kStages_, 1> {
  using Base = Cut<kRowTiles_, kTokenTiles_, kRowWarps_, kSplit_, kStages_, 1>;
  static constexpr bool kWarpGroups = true;
  static constexpr int kCopyThreads = 4 * kWarp, kLaunchThreads = Base::kThreads + kCopyThreads;
  static constexpr int kStages = kStages_;
  // Registers of a thread: the multiplying ones take over what the copying ones leave of the block's.
  static constexpr int kRowCopies = 8 * kSplit_, kInputCopies = Base::kTokens * kRowCopies / kCopyThreads;
  static constexpr int kBlockRegisters = 65536 / kLaunchThreads / 8 * 8 * kLaunchThreads;
  static constexpr int kCopyRegisters = kInputCopies > 8 ? 88 : 64;
  static constexpr int kRegisters = (kBlockRegisters - kCopyRegisters * kCopyThreads) / Base::kThreads / 8 * 8;
  // Behind the ring: a barrier that stage s is full, and one that it is empty again.
  static constexpr int kBarriers = kStages * Base::kStageBytes;
  static constexpr int kRings = std::max(Base::kRings, kBarriers + 2 * kStages * 8);
  static_assert(kRowWarps_ % 4 == 0 && (kTokenTiles_ == 8 || kTokenTiles_ == 16));
  static_assert(Base::kStageBytes % 1024 == 0 && (Base::kCodeBytes + Base::kScaleBytes) % 1024 == 0,
                "the swizzle repeats in 1024 bytes");
};

// Where 64 columns of tokens lie, 128 bytes each, 1024 bytes from eight rows to the next; there is but one stripe.
__device__ __forceinline__ uint64_t wgmma_matrix(uint32_t address) {
  return descriptor(address, 1024, 16);
}

#define CALLA_D4(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define CALLA_D16(n) CALLA_D4(n), CALLA_D4(n + 1), CALLA_D4(n + 2), CALLA_D4(n + 3)

// d[0..kTokens/8) += a·b, a: 64×16 over the group's warps, b: 16 columns of kTokens tokens.
template <int kTokens, int kTiles>
__device__ __forceinline__ void wgmma(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kTokens % 32 == 0 && kTokens <= 128 && kTokens <= 8 * kTiles);
  if constexpr (kTokens == 32) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
        : CALLA_D16(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (kTokens == 64) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
        : CALLA_D16(0), CALLA_D16(4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (kTokens == 96) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, {%48,%49,%50,%51}, %52, 1, 1, "
        "1, 0;"
        : CALLA_D16(0), CALLA_D16(4), CALLA_D16(8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"
        "%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
        : CALLA_D16(0), CALLA_D16(4), CALLA_D16(8), CALLA_D16(12)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}
#undef CALLA_D16
#undef CALLA_D4

// The ring as its warps see it: where step `step` lies, and which turn of the ring it is.
template <class C>
struct Turns {
  uint32_t base;
  int slot = 0, parity = 0;
  __device__ __forceinline__ explicit Turns(uint32_t b) : base(b) {}
  __device__ __forceinline__ uint32_t stage() const { return base + slot * C::kStageBytes; }
  __device__ __forceinline__ uint32_t full() const { return base + C::kBarriers + slot * 8; }
  __device__ __forceinline__ uint32_t empty() const { return base + C::kBarriers + (C::kStages + slot) * 8; }
  __device__ __forceinline__ void next() {
    if (++slot == C::kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Fills the ring.
template <class C, class Row>
__device__ __forceinline__ void copy_stages(const BlockProduct& p, uint32_t base, int steps, const Row& row) {
  constexpr int kAhead = C::kStages / 2;  // stages under way while one is awaited; the others are being used
  constexpr int kTiles = C::kBlockTiles * C::kSplit, kRowCopies = C::kRowCopies, kInputCopies = C::kInputCopies;
  static_assert(kTiles * 4 <= C::kCopyThreads && kTiles % 4 == 0);
  const int thread = threadIdx.x - C::kThreads, lane = thread % kWarp, warp = thread / kWarp;
  const int column = thread % kRowCopies, first_token = thread / kRowCopies;
  constexpr int kTokenStep = C::kCopyThreads / kRowCopies;
  constexpr uint32_t kNone = 0xffffffff;
  uint32_t input[kInputCopies];  // in 16 bytes
#pragma unroll
  for (int j = 0; j < kInputCopies; ++j) {
    const int token = first_token + j * kTokenStep;
    input[j] = token < p.tokens ? row(token) * uint32_t(p.groups * 8) + column : kNone;
  }
  Turns<C> fill(base), done(base);
  const auto tile_at = [&](int tile, int group) {
    return size_t(min(tile, p.row_tiles - 1) * p.groups + group);  // tiles past the last are the last again
  };
  for (int step = 0; step < steps + kAhead; ++step) {
    if (step < steps) {
      if (step >= C::kStages) barrier_wait(fill.empty(), fill.parity ^ 1);
      const uint32_t stage = fill.stage();
#pragma unroll
      for (int q = 0; q < kTiles; q += 4) {
        const int tile = (q + warp) / C::kSplit, group = step * C::kSplit + (q + warp) % C::kSplit;
        if (group < p.groups) {
          // The products read words of other lanes: exchanging places keeps those in different banks.
          copy_async(stage + (q + warp) * kTileCodeBytes + (lane ^ lane / 8) * 16,
                     p.codes + tile_at(tile, group) * kTileCodeBytes + lane * 16);
        }
      }
      if (thread < kTiles * 4) {
        const int tile = thread / 4 / C::kSplit, group = step * C::kSplit + thread / 4 % C::kSplit;
        if (group < p.groups) {
          copy_async(stage + C::kCodeBytes + thread * 16,
                     p.scales + tile_at(tile, group) * (kTileScaleWords * 4) + thread % 4 * 16);
        }
      }
      if (step * C::kSplit + column / 8 < p.groups) {
        const uint32_t to = stage + C::kCodeBytes + C::kScaleBytes + column / 8 * C::kTokens * C::kRowBytes;
#pragma unroll
        for (int j = 0; j < kInputCopies; ++j) {
          const int token = first_token + j * kTokenStep;
          if (input[j] == kNone) continue;
          copy_async(to + token * C::kRowBytes + (column % 8 ^ token % 8) * 16,
                     reinterpret_cast<const uint4*>(p.x) + input[j] + step * kRowCopies);
        }
      }
      fill.next();
    }
    commit_copies();
    if (step < kAhead) continue;
    wait_copies<kAhead>();
    publish_shared();
    barrier_arrive(done.full());
    done.next();
  }
}

// Multiplies what is in the ring, with up to kTokens tokens. While one group of warps makes f16 of its weights, the
// other's products run.
template <int kTokens, class C>
__device__ __forceinline__ void multiply_stages(const BlockProduct& p, const uint8_t* shared, int steps,
                                                float (&sum)[C::kRowTiles][C::kTokenTiles][4]) {
  set_zero(sum);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, i = lane / 4, t = lane % 4;
  const int split = warp / C::kRowWarps, first_tile = warp % C::kRowWarps * C::kRowTiles;
  // wgmma counts columns in order, so here a lane needs columns 16s + {2t, 2t+1} and 16s + 8 + {2t, 2t+1} for step s.
  // They lie in the share of lane 4i + s (tiles.h): byte t%2 of both halves of words t/2 and 2 + t/2.
  const uint32_t select = t % 2 == 0 ? 0x6240 : 0x7351;
  const int codes = (first_tile * C::kSplit + split) * kTileCodeBytes + 4 * i * 16 + t / 2 * 4;
  const int scales = C::kCodeBytes + (first_tile * C::kSplit + split) * (kTileScaleWords * 4) + i * 8;
  const int inputs = C::kCodeBytes + C::kScaleBytes + split * C::kTokens * C::kRowBytes;
  const bool live = first_tile / (4 * C::kRowTiles) * (4 * C::kRowTiles) < p.row_tiles;  // of the group's
  Turns<C> turn(shared_address(shared));
  for (int step = 0; step < steps; ++step, turn.next()) {
    barrier_wait(turn.full(), turn.parity);
    if (live && step * C::kSplit + split < p.groups) {
      const uint8_t* const stage = shared + turn.slot * C::kStageBytes;
      const uint64_t x = wgmma_matrix(turn.stage() + inputs);
      uint32_t a[C::kRowTiles][4][4];
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
        const RowScales row(stage + scales + r * C::kSplit * (kTileScaleWords * 4));
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const uint8_t* const from = stage + codes + r * C::kSplit * kTileCodeBytes + (s ^ i / 2) * 16;
          expand(__byte_perm(*reinterpret_cast<const uint32_t*>(from), *reinterpret_cast<const uint32_t*>(from + 8),
                             select),
                 row, a[r][s]);
        }
      }
      wgmma_begin();
#pragma unroll
      for (int s = 0; s < 4; ++s) {
#pragma unroll
        for (int r = 0; r < C::kRowTiles; ++r) wgmma<kTokens>(sum[r], a[r][s], x + 2 * s);
      }
      wgmma_commit();
      wgmma_wait<0>();
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(turn.empty());
  }
  // Sums are not read before the last wait.
#pragma unroll
  for (int r = 0; r < C::kRowTiles; ++r) settle(sum[r]);
}

// As the other multiply().
template <class C, class Ready, class Row, class Finish>
requires C::kWarpGroups __device__ __forceinline__ void multiply(const BlockProduct& p, uint8_t* shared,
                                                                 const Ready& ready, const Row& row,
                                                                 const Finish& finish) {
  const uint32_t base = shared_address(shared);
  const int steps = (p.groups + C::kSplit - 1) / C::kSplit;
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      barrier_init(base + C::kBarriers + s * 8, C::kCopyThreads);
      barrier_init(base + C::kBarriers + (C::kStages + s) * 8, C::kThreads / kWarp);
    }
  }
  ready();
  __syncthreads();
  if (threadIdx.x >= C::kThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(C::kCopyRegisters));
    copy_stages<C>(p, base, steps, row);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(C::kRegisters));
    float sum[C::kRowTiles][C::kTokenTiles][4];
    if (p.tokens <= 32) {
      multiply_stages<32, C>(p, shared, steps, sum);
    } else if (C::kTokens == 64 || p.tokens <= 64) {
      multiply_stages<64, C>(p, shared, steps, sum);
    } else if constexpr (C::kTokens == 128) {
      if (p.tokens <= 96) {
        multiply_stages<96, C>(p, shared, steps, sum);
      } else {
        multiply_stages<128, C>(p, shared, steps, sum);
      }
    }
    if (collect<C>(sum, shared)) finish(sum, static_cast<int>(threadIdx.x) / kWarp % C::kRowWarps * C::kRowTiles);
  }
}

}  // namespace calla::cuda
