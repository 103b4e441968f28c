#include "backend/cuda/step.h"

#include <algorithm>

#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/tiles.h"

// A product with one row uses the tensor cores for what they do to 16 rows of weights at a time; seven of the eight
// columns of the other operand are zero. Unpacking four bits costs more than the sum itself, and so the vector units
// have just enough time for it while the weights arrive.

namespace calla::cuda {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kThreads = kWarps * kWarp;
constexpr int kAhead = 8;  // tiles that a warp has in flight: enough warps × this covers the memory's latency
constexpr int kMaxMatrices = 4;
constexpr int kMaxInput = 8192;  // columns of a product

struct Tiles {
  const uint4* codes;
  const uint2* scales;
};

// Consecutive tiles of a row that a warp has in its registers, or on their way there.
struct InFlight {
  uint4 codes[kAhead];
  uint2 scales[kAhead];
};

// w: where this lane's share of slot 0 lies.
__device__ __forceinline__ void load_tile(InFlight& f, int slot, const Tiles& w) {
  f.codes[slot] = load_once(w.codes + slot * kWarp);
  f.scales[slot] = load_once(w.scales + slot * (kTileScaleWords / 2));
}
// The share of this lane of a tile.
__device__ __forceinline__ Tiles share(const Tiles& w, int tile, int lane) {
  return {w.codes + tile * kWarp + lane, w.scales + tile * (kTileScaleWords / 2) + lane / 4};
}

// sum[0] += row i, sum[1] += row i+8 of (scale·codes + bias)·x for one tile; right in the lanes that hold column 0
// (lane % 4 == 0). x: the group's 64 values; total: their sum.
__device__ __forceinline__ void add_tile(float (&sum)[2], uint4 codes, uint2 scales, const Half* x, float total,
                                         int lane) {
  uint4 lo{}, hi{};
  if (lane < 4) {  // column 0
    const uint4* p = reinterpret_cast<const uint4*>(x) + 2 * lane;
    lo = p[0];
    hi = p[1];
  }
  float d[4] = {};
  uint32_t a[4];
  unpack_codes(codes.x, a);
  mma(d, a, lo.x, lo.y);
  unpack_codes(codes.y, a);
  mma(d, a, lo.z, lo.w);
  unpack_codes(codes.z, a);
  mma(d, a, hi.x, hi.y);
  unpack_codes(codes.w, a);
  mma(d, a, hi.z, hi.w);
  sum[0] += scale_of(scales.x) * d[0] + bias_of(scales.x) * total;
  sum[1] += scale_of(scales.y) * d[2] + bias_of(scales.y) * total;
}

// Stores four neighbouring values as f16 and, by every sixteenth lane, the sum of the group of 64 that 16 lanes hold.
// The sum is of what is stored, so that scale and bias see the same input. All lanes of a warp call it; those past the
// end store nothing.
__device__ __forceinline__ void store_four(Half* x, float* totals, int column, bool inside, float4 v, int lane) {
  const __half2 a = __halves2half2(to_half(v.x), to_half(v.y)), b = __halves2half2(to_half(v.z), to_half(v.w));
  const float2 fa = __half22float2(a), fb = __half22float2(b);
  float sum = (fa.x + fa.y) + (fb.x + fb.y);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
  if (!inside) return;
  *reinterpret_cast<uint2*>(x + column) = make_uint2(bits(a), bits(b));
  if (lane % 16 == 0) totals[column / kGroup] = sum;
}

// Sum of squares of a block's threads.
__device__ __forceinline__ float block_sum(float v, float* partial) {
  v = warp_sum(v);
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) partial[warp] = v;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) sum += partial[w];
  return sum;
}

__device__ __forceinline__ float4 load_four(const float* p, bool inside) {
  return inside ? *reinterpret_cast<const float4*>(p) : float4{};
}
__device__ __forceinline__ float squares(float4 v) {
  return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
}

// f(column, inside) for each stretch of four columns that this thread has; all lanes of a warp take part.
template <class F>
__device__ __forceinline__ void for_columns(int width, const F& f) {
  const int lane = threadIdx.x % kWarp;
  for (int base = 4 * (threadIdx.x - lane); base < width; base += 4 * kThreads) {
    f(base + 4 * lane, base + 4 * lane < width);
  }
}

// rmsnorm(x) ⊙ gamma of a row of `width`: f(column, inside, value). x is read twice: it stays in the cache, and
// registers are for weights.
template <class F>
__device__ __forceinline__ void normed(const float* x, const float* gamma, float eps, int width, float* partial,
                                       const F& f) {
  float sum = 0;
  for_columns(width, [&](int c, bool inside) { sum += squares(load_four(x + c, inside)); });
  const float scale = rsqrtf(block_sum(sum, partial) / width + eps);
  for_columns(width, [&](int c, bool inside) {
    const float4 v = load_four(x + c, inside), g = load_four(gamma + c, inside);
    f(c, inside, float4{v.x * scale * g.x, v.y * scale * g.y, v.z * scale * g.z, v.w * scale * g.w});
  });
}

// The product's input in shared memory: x as f16, and the sum of each group.
template <StepInput::Kind kKind>
__device__ __forceinline__ void make_input(const StepInput& in, int width, Half* x, float* totals, float* partial) {
  const int lane = threadIdx.x % kWarp;
  const auto store = [&](int c, bool inside, float4 v) { store_four(x, totals, c, inside, v, lane); };
  if constexpr (kKind == StepInput::Kind::kNorm) {
    normed(in.x, in.gamma, in.eps, width, partial, store);
  } else if constexpr (kKind == StepInput::Kind::kGated) {
    for_columns(width, [&](int c, bool inside) {
      const float4 v = load_four(in.x + c, inside), z = load_four(in.z + c, inside);
      const float4 g = load_four(in.gamma + c % kGdnDim, inside);
      const float scale = rsqrtf(warp_sum(squares(v)) / kGdnDim + in.eps);  // a warp holds one head
      store(c, inside,
            float4{v.x * scale * g.x * silu(z.x), v.y * scale * g.y * silu(z.y), v.z * scale * g.z * silu(z.z),
                   v.w * scale * g.w * silu(z.w)});
    });
  } else {
    for_columns(width, [&](int c, bool inside) {
      const uint2 raw = inside ? *reinterpret_cast<const uint2*>(in.half + c) : uint2{};
      const float2 a = __half22float2(as_half2(raw.x)), b = __half22float2(as_half2(raw.y));
      store(c, inside, float4{a.x, a.y, b.x, b.y});
    });
  }
  __syncthreads();
}

struct Matrix {
  Tiles tiles;
  float* y;
  int rows, row_tiles;
  bool add;
};
struct Products {
  Matrix w[kMaxMatrices];
  int count;
  int groups;  // of the input
  int units;   // stretches of kWarps / split row tiles, all matrices together
  StepInput in;
};

// A block takes kWarps / kSplit rows of tiles at a time; kSplit warps share a row, each with a stretch of its groups.
// While a warp adds up one tile, the one kAhead later is on its way, across the ends of rows.
template <StepInput::Kind kKind, int kSplit>
__global__ __launch_bounds__(kThreads, 3) void products_kernel(const __grid_constant__ Products p) {
  constexpr int kRows = kWarps / kSplit;  // row tiles of a unit
  extern __shared__ __align__(16) uint8_t shared[];
  Half* const x = reinterpret_cast<Half*>(shared);
  float* const totals = reinterpret_cast<float*>(x + p.groups * kGroup);
  __shared__ float partial[kWarps];
  __shared__ float sums[kWarps][kTileRows];

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int per_warp = (p.groups + kSplit - 1) / kSplit;
  const int first = min(warp % kSplit * per_warp, p.groups), end = min(first + per_warp, p.groups);

  // This warp's row tile of a unit, as matrix and number; matrix = count: the unit has none for it.
  struct Place {
    int matrix, row_tile;
  };
  const auto locate = [&](int unit) {
    Place at{0, unit * kRows + warp / kSplit};
    while (at.matrix < p.count && at.row_tile >= p.w[at.matrix].row_tiles) at.row_tile -= p.w[at.matrix++].row_tiles;
    return at;
  };
  // Tiles from group `from` of a place; null where there is nothing to do.
  const auto tiles_at = [&](Place at, int from) {
    if (at.matrix >= p.count) return Tiles{};
    return share(p.w[at.matrix].tiles, at.row_tile * p.groups + from, lane);
  };

  InFlight flight;
  int unit = blockIdx.x;
  Place place = locate(unit);
  const Tiles start = tiles_at(place, first);
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    if (start.codes != nullptr && first + j < end) load_tile(flight, j, start);
  }

  wait_for_previous();
  launch_next();
  make_input<kKind>(p.in, p.groups * kGroup, x, totals, partial);

  float sum[2] = {};
  for (int from = first; unit < p.units;) {
    // What comes after this stretch: the next one of the row, or the next unit's row.
    const bool last = from + kAhead >= first + per_warp;
    const int next_unit = last ? unit + gridDim.x : unit, next_from = last ? first : from + kAhead;
    const Place next_place = last ? locate(next_unit) : place;
    const Tiles next = tiles_at(next_place, next_from);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int group = from + j;
      if (group < end) add_tile(sum, flight.codes[j], flight.scales[j], x + group * kGroup, totals[group], lane);
      if (next.codes != nullptr && next_from + j < end) load_tile(flight, j, next);
    }
    if (last) {
      if (lane % 4 == 0) {
        sums[warp][lane / 4] = sum[0];
        sums[warp][lane / 4 + 8] = sum[1];
      }
      sum[0] = sum[1] = 0;
      __syncthreads();
      if (warp % kSplit == 0 && lane < kTileRows && place.matrix < p.count) {
        float total = 0;
#pragma unroll
        for (int s = 0; s < kSplit; ++s) total += sums[warp + s][lane];
        const Matrix& w = p.w[place.matrix];
        const int row = place.row_tile * kTileRows + lane;
        if (row < w.rows) w.y[row] = w.add ? w.y[row] + total : total;
      }
      __syncthreads();
    }
    unit = next_unit;
    place = next_place;
    from = next_from;
  }
}

int multiprocessors() {
  static const int count = [] {
    int device = 0, n = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return n;
  }();
  return count;
}

template <StepInput::Kind kKind, int kSplit>
void launch_products(Stream stream, Products p) {
  int row_tiles = 0;
  for (int j = 0; j < p.count; ++j) row_tiles += p.w[j].row_tiles;
  constexpr int kRows = kWarps / kSplit;
  p.units = (row_tiles + kRows - 1) / kRows;
  const size_t shared = p.groups * (kGroup * sizeof(Half) + sizeof(float));
  launch(products_kernel<kKind, kSplit>, std::min(p.units, 3 * multiprocessors()), kThreads, shared, stream, p);
}

template <StepInput::Kind kKind>
void launch_products(Stream stream, const Products& p) {
  // Eight warps a row where its columns are many or its rows too few to fill the chip.
  int row_tiles = 0;
  for (int j = 0; j < p.count; ++j) row_tiles += p.w[j].row_tiles;
  if (p.groups > 4 * kAhead || row_tiles <= multiprocessors()) {
    launch_products<kKind, 8>(stream, p);
  } else {
    launch_products<kKind, 4>(stream, p);
  }
}

Tiles tiles_of(const DeviceLinear& w) {
  return {static_cast<const uint4*>(w.weight), reinterpret_cast<const uint2*>(w.scales)};
}

}  // namespace

void step_products(Stream stream, const StepInput& input, std::initializer_list<StepOutput> outputs) {
  Products p{};
  p.in = input;
  for (const StepOutput& out : outputs) {
    CHECK(p.count < kMaxMatrices && out.w->format == DeviceLinear::Format::kAffine4 && out.w->in <= kMaxInput &&
              (p.count == 0 || out.w->in == p.groups * kGroup),
          "a product that the step has no kernel for");
    p.groups = out.w->in / kGroup;
    p.w[p.count++] = {tiles_of(*out.w), out.y, out.w->out, (out.w->out + kTileRows - 1) / kTileRows, out.add};
  }
  switch (input.kind) {
    case StepInput::Kind::kNorm:
      return launch_products<StepInput::Kind::kNorm>(stream, p);
    case StepInput::Kind::kGated:
      return launch_products<StepInput::Kind::kGated>(stream, p);
    case StepInput::Kind::kHalf:
      return launch_products<StepInput::Kind::kHalf>(stream, p);
  }
}

namespace {

struct Route {
  const float *x, *gamma;
  float eps;
  int hidden, experts, top_k;
  const uint8_t *router, *shared_gate;  // [.., hidden] codes
  const uint32_t *router_scales, *shared_scales;
  StepExperts out;
};

// A group's values are read by one lane, 16 bytes at a time: a shift of four floats a group spreads the lanes over the
// banks.
__device__ __forceinline__ int spread(int column) {
  return column + column / kGroup * 4;
}

// A number that sorts like the logit, ties to the lower index.
__device__ __forceinline__ unsigned long long sort_key(float logit, int index) {
  const uint32_t raw = __float_as_uint(logit);
  const uint32_t ordered = raw & 0x80000000u ? ~raw : raw | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - index);
}

// The choice, by one warp.
__device__ __forceinline__ void choose(const Route& p, int lane) {
  constexpr int kEach = 16;  // logits of a lane: 512 experts at most
  unsigned long long key[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int e = lane + kWarp * j;
    key[j] = e < p.experts ? sort_key(__ldcg(p.out.logits + e), e) : 0;
  }
  float best = 0, total = 0, mine = 0;
  for (int k = 0; k < p.top_k; ++k) {
    unsigned long long top = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) top = max(top, key[j]);
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) top = max(top, __shfl_xor_sync(0xffffffff, top, offset));
    const int e = static_cast<int>(0xffffffffu - static_cast<uint32_t>(top));
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (key[j] == top) key[j] = 0;
    }
    const float logit = __ldcg(p.out.logits + e);
    if (k == 0) best = logit;
    const float share = __expf(logit - best);
    total += share;
    if (lane == k) {
      mine = share;
      p.out.chosen[k] = e;
    }
  }
  if (lane < p.top_k) p.out.weight[lane] = mine / total;
  if (lane == p.top_k) p.out.weight[lane] = sigmoid(__ldcg(p.out.logits + p.experts));
}

// One row of the router a warp; the last block to end chooses.
__global__ __launch_bounds__(kThreads) void route_kernel(const __grid_constant__ Route p) {
  extern __shared__ __align__(16) float h[];
  __shared__ float partial[kWarps];
  __shared__ bool last;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int row = blockIdx.x * kWarps + warp, groups = p.hidden / kGroup;
  const bool live = row <= p.experts, gate = row == p.experts;
  const uint4* const codes = reinterpret_cast<const uint4*>(gate ? p.shared_gate : p.router + size_t(row) * p.hidden);
  const uint32_t* const scales = gate ? p.shared_scales : p.router_scales + size_t(row) * groups;

  // One group a lane and round: 64 codes in four loads. The first round is on its way before the norm.
  uint4 ahead[4] = {};
  uint32_t ahead_scale = 0;
  const auto load = [&](int group) {
#pragma unroll
    for (int j = 0; j < 4; ++j) ahead[j] = load_once(codes + group * 4 + j);
    ahead_scale = scales[group];
  };
  if (live && lane < groups) load(lane);
  wait_for_previous();
  launch_next();
  normed(p.x, p.gamma, p.eps, p.hidden, partial, [&](int c, bool inside, float4 v) {
    if (!inside) return;
    *reinterpret_cast<float4*>(h + spread(c)) = v;
    if (blockIdx.x == 0) {
      const __half2 a = __halves2half2(to_half(v.x), to_half(v.y)), b = __halves2half2(to_half(v.z), to_half(v.w));
      *reinterpret_cast<uint2*>(p.out.h + c) = make_uint2(bits(a), bits(b));
    }
  });
  __syncthreads();

  float sum = 0;
  if (live) {
    for (int group = lane; group < groups; group += kWarp) {
      if (group != lane) load(group);
      float dot = 0, total = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t words[4] = {ahead[j].x, ahead[j].y, ahead[j].z, ahead[j].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 v = *reinterpret_cast<const float4*>(h + spread(group * kGroup) + 16 * j + 4 * i);
          const uint32_t q = words[i];
          dot += v.x * (q & 255) + v.y * (q >> 8 & 255) + v.z * (q >> 16 & 255) + v.w * (q >> 24);
          total += (v.x + v.y) + (v.z + v.w);
        }
      }
      sum += scale_of(ahead_scale) * dot + bias_of(ahead_scale) * total;
    }
    sum = warp_sum(sum);
    if (lane == 0) p.out.logits[row] = sum;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(p.out.done, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!last || warp != 0) return;
  __threadfence();
  choose(p, lane);
  if (lane == 0) *p.out.done = 0;
}

struct Expert {
  Tiles gate_up, down;  // of expert 0
  size_t gate_up_codes, gate_up_scales, down_codes, down_scales;
};
struct Inner {
  Expert routed, shared;
  int top_k, groups, width;
  StepExperts e;
};

__device__ __forceinline__ Tiles at(const Tiles& w, size_t codes, size_t scales, int expert) {
  return {reinterpret_cast<const uint4*>(reinterpret_cast<const uint8_t*>(w.codes) + codes * expert),
          reinterpret_cast<const uint2*>(reinterpret_cast<const uint8_t*>(w.scales) + scales * expert)};
}

// Block (u, s): 16 inner values of the expert of slot s. Four warps sum gate rows, four the same rows of up.
__global__ __launch_bounds__(kThreads, 3) void inner_kernel(const __grid_constant__ Inner p) {
  extern __shared__ __align__(16) uint8_t shared[];
  Half* const x = reinterpret_cast<Half*>(shared);
  float* const totals = reinterpret_cast<float*>(x + p.groups * kGroup);
  __shared__ float sums[kWarps][kTileRows];
  constexpr int kSplit = 4;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int slot = blockIdx.y, unit = blockIdx.x;
  const bool routed = slot < p.top_k;
  const int per_warp = (p.groups + kSplit - 1) / kSplit;
  const int first = min(warp % kSplit * per_warp, p.groups), end = min(first + per_warp, p.groups);
  const int row = (2 * unit + warp / kSplit) * p.groups;
  Tiles w = p.shared.gate_up;
  InFlight flight;
  const auto load = [&](int from) {
    const Tiles mine = share(w, row + from, lane);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (from + j < end) load_tile(flight, j, mine);
    }
  };
  if (!routed) load(first);
  wait_for_previous();
  launch_next();
  if (routed) {
    w = at(p.routed.gate_up, p.routed.gate_up_codes, p.routed.gate_up_scales, p.e.chosen[slot]);
    load(first);
  }
  StepInput in;
  in.half = p.e.h;
  make_input<StepInput::Kind::kHalf>(in, p.groups * kGroup, x, totals, nullptr);
  float sum[2] = {};
  for (int from = first; from < end; from += kAhead) {
    if (from != first) load(from);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int group = from + j;
      if (group < end) add_tile(sum, flight.codes[j], flight.scales[j], x + group * kGroup, totals[group], lane);
    }
  }
  if (lane % 4 == 0) {
    sums[warp][lane / 4] = sum[0];
    sums[warp][lane / 4 + 8] = sum[1];
  }
  __syncthreads();
  if (threadIdx.x >= kTileRows) return;
  float gate = 0, up = 0;
#pragma unroll
  for (int s = 0; s < kSplit; ++s) {
    gate += sums[s][threadIdx.x];
    up += sums[kSplit + s][threadIdx.x];
  }
  p.e.inner[size_t(slot) * p.width + unit * kTileRows + threadIdx.x] = to_half(silu(gate) * up);
}

struct Outer {
  Expert routed, shared;
  int top_k, groups, rows;
  StepExperts e;
  float* y;
  bool add;
};

// Block: 16 rows of y. Warp s has slot s, its whole row of tiles; which expert that is the router said two kernels ago,
// so the weights are on their way before the inner values are there.
__global__ __launch_bounds__((kMaxTopK + 1) * kWarp) void outer_kernel(const __grid_constant__ Outer p) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ float sums[kMaxTopK + 1][kTileRows];
  const int lane = threadIdx.x % kWarp, slot = threadIdx.x / kWarp;
  const bool routed = slot < p.top_k;
  Half* const x = reinterpret_cast<Half*>(shared) + slot * p.groups * kGroup;
  const Tiles w =
      routed ? at(p.routed.down, p.routed.down_codes, p.routed.down_scales, p.e.chosen[slot]) : p.shared.down;
  const int row = blockIdx.x * p.groups;
  InFlight flight;
  const auto load = [&](int from) {
    const Tiles mine = share(w, row + from, lane);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (from + j < p.groups) load_tile(flight, j, mine);
    }
  };
  load(0);
  const float weight = p.e.weight[slot];
  wait_for_previous();
  launch_next();
  // A lane holds 16 columns of a group, the whole warp eight groups.
  const uint4* const inner = reinterpret_cast<const uint4*>(p.e.inner + size_t(slot) * p.groups * kGroup);
  float sum[2] = {};
  for (int from = 0; from < p.groups; from += kAhead) {
    if (from != 0) load(from);
    float mine = 0;
    if (from + lane / 4 < p.groups) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 v = inner[(from * 4 + lane) * 2 + half];
        reinterpret_cast<uint4*>(x)[(from * 4 + lane) * 2 + half] = v;
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 two = __half22float2(as_half2(words[j]));
          mine += two.x + two.y;
        }
      }
    }
    mine += __shfl_xor_sync(0xffffffff, mine, 1);
    mine += __shfl_xor_sync(0xffffffff, mine, 2);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const float total = __shfl_sync(0xffffffff, mine, 4 * j);
      const int group = from + j;
      if (group < p.groups) add_tile(sum, flight.codes[j], flight.scales[j], x + group * kGroup, total, lane);
    }
  }
  if (lane % 4 == 0) {
    sums[slot][lane / 4] = weight * sum[0];
    sums[slot][lane / 4 + 8] = weight * sum[1];
  }
  __syncthreads();
  if (threadIdx.x >= kTileRows) return;
  float total = 0;
  for (int s = 0; s <= p.top_k; ++s) total += sums[s][threadIdx.x];
  float* const y = p.y + blockIdx.x * kTileRows + threadIdx.x;
  *y = p.add ? *y + total : total;
}

Expert expert_of(const DeviceExperts& e) {
  return {tiles_of(e.gate_up), tiles_of(e.down), e.gate_up_codes, e.gate_up_scales, e.down_codes, e.down_scales};
}

}  // namespace

void step_route(Stream stream, const float* x, const float* gamma, float eps, const DeviceLinear& router,
                const DeviceLinear& shared_gate, int top_k, const StepExperts& e) {
  CHECK(router.format == DeviceLinear::Format::kAffine8 && shared_gate.format == DeviceLinear::Format::kAffine8 &&
            router.in <= kMaxInput && router.out <= 512 && top_k <= kMaxTopK,
        "a router that the step has no kernel for");
  const Route p{x,
                gamma,
                eps,
                router.in,
                router.out,
                top_k,
                static_cast<const uint8_t*>(router.weight),
                static_cast<const uint8_t*>(shared_gate.weight),
                router.scales,
                shared_gate.scales,
                e};
  const size_t shared = sizeof(float) * (router.in + router.in / kGroup * 4);
  launch(route_kernel, (router.out + 1 + kWarps - 1) / kWarps, kThreads, shared, stream, p);
}

void step_inner(Stream stream, const DeviceExperts& routed, const DeviceExperts& shared, int top_k,
                const StepExperts& e) {
  CHECK(routed.width == shared.width && routed.hidden <= kMaxInput, "experts that the step has no kernel for");
  const int groups = routed.hidden / kGroup;
  const Inner p{expert_of(routed), expert_of(shared), top_k, groups, routed.width, e};
  launch(inner_kernel, dim3(routed.width / kTileRows, top_k + 1), kThreads,
         groups * (kGroup * sizeof(Half) + sizeof(float)), stream, p);
}

void step_outer(Stream stream, const DeviceExperts& routed, const DeviceExperts& shared, int top_k,
                const StepExperts& e, float* y, bool add) {
  const int groups = routed.width / kGroup;
  const Outer p{expert_of(routed), expert_of(shared), top_k, groups, routed.hidden, e, y, add};
  launch(outer_kernel, routed.hidden / kTileRows, (top_k + 1) * kWarp, (top_k + 1) * groups * kGroup * sizeof(Half),
         stream, p);
}

}  // namespace calla::cuda
