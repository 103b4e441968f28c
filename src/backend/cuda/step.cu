#include "backend/cuda/step.h"

#include <algorithm>
#include <climits>

#include "backend/cuda/chip.h"
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
  uint2 scales[kAhead / 4];  // lane 4·i + t has those of rows i and i+8 of tiles t and t+4
};

constexpr int kQuad = 4;  // tiles that share the four pairs of columns of a fragment

// w: where this lane's share of the first tile lies; count: tiles from there on. Past the end scales are zero.
__device__ __forceinline__ void load_quad(InFlight& f, int quad, const Tiles& w, int count, int lane) {
#pragma unroll
  for (int j = kQuad * quad; j < kQuad * (quad + 1); ++j) {
    if (j < count) f.codes[j] = load_once(w.codes + j * kWarp);
  }
  const int scaled = kQuad * quad + lane % kQuad;
  f.scales[quad] = scaled < count ? load_once(w.scales + scaled * (kTileScaleWords / 2)) : uint2{};
}
__device__ __forceinline__ void load_tiles(InFlight& f, const Tiles& w, int count, int lane) {
#pragma unroll
  for (int q = 0; q < kAhead / kQuad; ++q) load_quad(f, q, w, count, lane);
}
// The share of this lane of a tile.
__device__ __forceinline__ Tiles share(const Tiles& w, int tile, int lane) {
  return {w.codes + tile * kWarp + lane, w.scales + tile * (kTileScaleWords / 2) + lane / 4};
}

// The other operand of a quad: column 2j of the fragment is the input of tile j, all else is zero, so that the sums of
// tile j end in lanes 4i + j, which hold that tile's scales.
struct Columns {
  const uint4* of[kQuad];
};
// x: the values of the first quad's groups; zeros: as many zero bytes as the tiles in flight need values.
__device__ __forceinline__ Columns columns(const Half* x, const uint4* zeros, int lane) {
  const int i = lane / 4, t = lane % 4;
  const uint4* const own = reinterpret_cast<const uint4*>(x + i / 2 * kGroup) + 2 * t;
  Columns c;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) c.of[j] = i == 2 * j ? own : zeros;
  return c;
}
constexpr int kZeroWords = kAhead * kGroup * sizeof(Half) / sizeof(uint4);

// sum[0] += row i, sum[1] += row i+8 of (scale·codes + bias)·x, in lane 4·i + t for tiles t of the quads. total: the
// sum of x over the group of that tile. The operand keeps what a code has on top of it in an f16 word, 1024 + code in
// row i and 1024 + 16·code in row i+8, and the sum of x takes it off again: in f32 that costs 2^-24 of 1024·Σ|x|, an
// eighth of what rounding x to f16 does.
__device__ __forceinline__ void add_quad(float (&sum)[2], const InFlight& f, int quad, const Columns& c, float total) {
  float d[4] = {}, e[4] = {};  // two sums: a product waits for the one before it
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    const uint4 codes = f.codes[kQuad * quad + j];
    const uint4* const p = c.of[j] + quad * (kQuad * kGroup * sizeof(Half) / sizeof(uint4));
    const uint4 lo = p[0], hi = p[1];
    uint32_t a[4];
    lift_codes(codes.x, a);
    mma(d, a, lo.x, lo.y);
    lift_codes(codes.y, a);
    mma(e, a, lo.z, lo.w);
    lift_codes(codes.z, a);
    mma(d, a, hi.x, hi.y);
    lift_codes(codes.w, a);
    mma(e, a, hi.z, hi.w);
  }
  const uint2 scales = f.scales[quad];
  const float s0 = scale_of(scales.x), s1 = scale_of(scales.y) * 0.0625f;
  sum[0] += s0 * (d[0] + e[0]) + (bias_of(scales.x) - 1024 * s0) * total;
  sum[1] += s1 * (d[2] + e[2]) + (bias_of(scales.y) - 1024 * s1) * total;
}
// Rows i and i+8 over all tiles, for all lanes of a row.
__device__ __forceinline__ void sum_tiles(float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
  }
}

// Stores four neighbouring values as f16 and, by every sixteenth lane, the sum of the group of 64 that 16 lanes hold.
// The sum is of what is stored, so that scale and bias see the same input. All lanes of a warp call it; those past the
// end store nothing.
__device__ __forceinline__ void store_four(Half* x, float* totals, int column, bool inside, float4 v, int lane) {
  const __half2 a = to_half2(v.x, v.y), b = to_half2(v.z, v.w);
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

// Weights of a norm that a thread will need first: on their way before the kernel ahead has ended.
constexpr int kKept = 2;  // stretches of a thread that stay in registers: rows of 2048
struct Gamma {
  float4 v[kKept];
};
__device__ __forceinline__ Gamma load_gamma(const float* gamma, int width) {
  Gamma g;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int c = 4 * (threadIdx.x + j * kThreads);
    g.v[j] = load_four(gamma + c, c < width);
  }
  return g;
}

// rmsnorm(x) ⊙ gamma of a row of `width`: f(column, inside, value), by all lanes of a warp.
template <class F>
__device__ __forceinline__ void normed(const float* x, const float* gamma, const Gamma& g, float eps, int width,
                                       float* partial, const F& f) {
  const int warp_column = 4 * (threadIdx.x - threadIdx.x % kWarp);
  float4 v[kKept];
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int c = 4 * (threadIdx.x + j * kThreads);
    v[j] = load_four(x + c, c < width);
    sum += squares(v[j]);
  }
  constexpr int kStride = 4 * kThreads;
  for (int base = warp_column + kKept * kStride; base < width; base += kStride) {
    const int c = base + 4 * (threadIdx.x % kWarp);
    sum += squares(load_four(x + c, c < width));
  }
  const float scale = rsqrtf(block_sum(sum, partial) / width + eps);
  const auto times = [&](float4 a, float4 b) {
    return float4{a.x * scale * b.x, a.y * scale * b.y, a.z * scale * b.z, a.w * scale * b.w};
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int c = 4 * (threadIdx.x + j * kThreads);
    if (warp_column + j * kStride < width) f(c, c < width, times(v[j], g.v[j]));
  }
  for (int base = warp_column + kKept * kStride; base < width; base += kStride) {
    const int c = base + 4 * (threadIdx.x % kWarp);
    f(c, c < width, times(load_four(x + c, c < width), load_four(gamma + c, c < width)));
  }
}

// The product's input in shared memory: x as f16 and the sum of each group, and kAhead groups of zeros after it, for
// what tiles in flight may read past the end.
template <StepInput::Kind kKind>
__device__ __forceinline__ void make_input(const StepInput& in, const Gamma& gamma, int width, Half* x, float* totals,
                                           float* partial) {
  const int lane = threadIdx.x % kWarp;
  const auto store = [&](int c, bool inside, float4 v) { store_four(x, totals, c, inside, v, lane); };
  if (threadIdx.x < kZeroWords) reinterpret_cast<uint4*>(x + width)[threadIdx.x] = uint4{};
  if (threadIdx.x < kAhead) totals[width / kGroup + threadIdx.x] = 0;
  if constexpr (kKind == StepInput::Kind::kNorm) {
    normed(in.x, in.gamma, gamma, in.eps, width, partial, store);
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
  float* const totals = reinterpret_cast<float*>(x + (p.groups + kAhead) * kGroup);
  __shared__ uint4 zeros[kZeroWords];
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
  if (start.codes != nullptr) load_tiles(flight, start, end - first, lane);
  Gamma gamma{};
  if constexpr (kKind == StepInput::Kind::kNorm) gamma = load_gamma(p.in.gamma, p.groups * kGroup);
  if (threadIdx.x < kZeroWords) zeros[threadIdx.x] = uint4{};

  wait_for_previous();
  launch_next();
  make_input<kKind>(p.in, gamma, p.groups * kGroup, x, totals, partial);

  float sum[2] = {};
  for (int from = first; unit < p.units;) {
    // What comes after this stretch: the next one of the row, or the next unit's row.
    const bool last = from + kAhead >= first + per_warp;
    const int next_unit = last ? unit + gridDim.x : unit, next_from = last ? first : from + kAhead;
    const Place next_place = last ? locate(next_unit) : place;
    const Tiles next = tiles_at(next_place, next_from);
    const bool live = place.matrix < p.count && from < end;
    const Columns c = columns(x + min(from, p.groups) * kGroup, zeros, lane);
#pragma unroll
    for (int q = 0; q < kAhead / kQuad; ++q) {
      if (live) add_quad(sum, flight, q, c, totals[from + kQuad * q + lane % kQuad]);
      if (next.codes != nullptr) load_quad(flight, q, next, end - next_from, lane);
    }
    if (last) {
      sum_tiles(sum);
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
      if (next_unit < p.units) __syncthreads();
    }
    unit = next_unit;
    place = next_place;
    from = next_from;
  }
}

// Shared memory of make_input.
size_t input_bytes(int groups) {
  return (groups + kAhead) * (kGroup * sizeof(Half) + sizeof(float));
}

template <StepInput::Kind kKind, int kSplit>
void launch_products(Stream stream, Products p) {
  int row_tiles = 0;
  for (int j = 0; j < p.count; ++j) row_tiles += p.w[j].row_tiles;
  constexpr int kRows = kWarps / kSplit;
  p.units = (row_tiles + kRows - 1) / kRows;
  launch(products_kernel<kKind, kSplit>, std::min(p.units, 3 * current_chip().multiprocessors), kThreads,
         input_bytes(p.groups), stream, p);
}

template <StepInput::Kind kKind>
void launch_products(Stream stream, const Products& p) {
  // Eight warps a row where its columns are many or its rows too few to fill the chip.
  int row_tiles = 0;
  for (int j = 0; j < p.count; ++j) row_tiles += p.w[j].row_tiles;
  if (p.groups > 4 * kAhead || row_tiles <= current_chip().multiprocessors) {
    launch_products<kKind, 8>(stream, p);
  } else {
    launch_products<kKind, 4>(stream, p);
  }
}

Tiles tiles_of(const DeviceLinear& w) {
  return {static_cast<const uint4*>(w.weight), reinterpret_cast<const uint2*>(w.scales)};
}

}  // namespace

void step_products(Stream stream, const StepInput& input, std::span<const StepOutput> outputs) {
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
  int hidden, experts;
  const uint8_t *router, *shared_gate;  // [.., hidden] codes
  const uint32_t *router_scales, *shared_scales;
  StepExperts out;
};

// A group's values are read by one lane, 16 bytes at a time: a shift of four floats a group spreads the lanes over the
// banks.
__device__ __forceinline__ int spread(int column) {
  return column + column / kGroup * 4;
}

// The chosen experts and their weights in shared memory, by one warp. Whoever needs no weights may stop early: rounds <
// top_k finds the best `rounds` experts only.
struct Choice {
  int32_t expert[kMaxTopK];
  float weight[kMaxTopK + 1];  // the last is σ(shared gate)
};
constexpr int kMostExperts = 512;

// kEach: logits of a lane.
template <int kEach>
__device__ __forceinline__ void choose_of(const float* logits, int experts, int rounds, int lane, Choice& choice) {
  // Numbers that sort like the logits; 0 is below all.
  uint32_t key[kEach];
  const float shared = logits[experts];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int e = lane + kWarp * j;
    const uint32_t raw = e < experts ? __float_as_uint(logits[e]) : 0xffffffff;
    key[j] = raw & 0x80000000u ? ~raw : raw | 0x80000000u;
  }
  float mine = 0;
  for (int k = 0; k < rounds; ++k) {
    // Each lane's best, then the warp's; the lowest index where several are equal.
    uint32_t own = 0;
    int index = INT_MAX;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (key[j] > own) {
        own = key[j];
        index = lane + kWarp * j;
      }
    }
    const uint32_t top = __reduce_max_sync(0xffffffff, own);
    const int e = __reduce_min_sync(0xffffffff, own == top ? index : INT_MAX);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (lane + kWarp * j == e) key[j] = 0;
    }
    if (lane == k) {
      mine = __uint_as_float(top & 0x80000000u ? top & 0x7fffffffu : ~top);
      choice.expert[k] = min(e, experts - 1);  // NaNs have no order; they shall not lead out of the weights
    }
  }
  const float best = __shfl_sync(0xffffffff, mine, 0);
  const float share = lane < rounds ? __expf(mine - best) : 0;
  const float total = warp_sum(share);
  if (lane < rounds) choice.weight[lane] = share / total;
  if (lane == 0) choice.weight[rounds] = sigmoid(shared);
}
__device__ __forceinline__ void choose(const float* logits, int experts, int rounds, int lane, Choice& choice) {
  if (experts <= kMostExperts / 2) {
    choose_of<kMostExperts / 2 / kWarp>(logits, experts, rounds, lane, choice);
  } else {
    choose_of<kMostExperts / kWarp>(logits, experts, rounds, lane, choice);
  }
}

// One row of the router a warp.
__global__ __launch_bounds__(kThreads) void route_kernel(const __grid_constant__ Route p) {
  extern __shared__ __align__(16) float h[];
  __shared__ float partial[kWarps];
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
  const Gamma gamma = load_gamma(p.gamma, p.hidden);
  wait_for_previous();
  launch_next();
  normed(p.x, p.gamma, gamma, p.eps, p.hidden, partial, [&](int c, bool inside, float4 v) {
    if (!inside) return;
    *reinterpret_cast<float4*>(h + spread(c)) = v;
    if (blockIdx.x == 0) {
      const __half2 a = to_half2(v.x, v.y), b = to_half2(v.z, v.w);
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
}

struct Expert {
  Tiles gate_up, down;  // of expert 0
  size_t gate_up_codes, gate_up_scales, down_codes, down_scales;
};
struct Inner {
  Expert routed, shared;
  int experts, top_k, groups;
  int routed_width, shared_width, widest;
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
  float* const totals = reinterpret_cast<float*>(x + (p.groups + kAhead) * kGroup);
  __shared__ uint4 zeros[kZeroWords];
  __shared__ float sums[kWarps][kTileRows];
  __shared__ Choice choice;
  constexpr int kSplit = 4;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int slot = blockIdx.y, unit = blockIdx.x;
  const bool routed = slot < p.top_k;
  if (unit * kTileRows >= (routed ? p.routed_width : p.shared_width)) return;
  const int per_warp = (p.groups + kSplit - 1) / kSplit;
  const int first = min(warp % kSplit * per_warp, p.groups), end = min(first + per_warp, p.groups);
  const int row = (2 * unit + warp / kSplit) * p.groups;
  const auto load = [&](InFlight& f, const Tiles& w, int from) {
    load_tiles(f, share(w, row + from, lane), end - from, lane);
  };
  InFlight flight;
  Tiles w = p.shared.gate_up;
  if (!routed) load(flight, w, first);
  if (threadIdx.x < kZeroWords) zeros[threadIdx.x] = uint4{};
  wait_for_previous();
  launch_next();
  if (routed && warp == 0) choose(p.e.logits, p.experts, slot + 1, lane, choice);
  StepInput in;
  in.half = p.e.h;
  make_input<StepInput::Kind::kHalf>(in, Gamma{}, p.groups * kGroup, x, totals, nullptr);
  if (routed) {
    w = at(p.routed.gate_up, p.routed.gate_up_codes, p.routed.gate_up_scales, choice.expert[slot]);
    load(flight, w, first);
  }
  float sum[2] = {};
  for (int from = first; from < end; from += kAhead) {
    if (from != first) load(flight, w, from);
    const Columns c = columns(x + from * kGroup, zeros, lane);
#pragma unroll
    for (int q = 0; q < kAhead / kQuad; ++q) {
      add_quad(sum, flight, q, c, totals[from + kQuad * q + lane % kQuad]);
    }
  }
  sum_tiles(sum);
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
  p.e.inner[size_t(slot) * p.widest + unit * kTileRows + threadIdx.x] = to_half(silu(gate) * up);
}

struct Outer {
  Expert routed, shared;
  int experts, top_k;
  int routed_groups, shared_groups, most_groups;  // of the inner values
  StepExperts e;
  float* y;
  bool add;
};

// Block: 16 rows of y. Warp s has slot s, its whole row of tiles; which expert that is the router said two kernels ago,
// so the weights are on their way before the inner values are there.
// At 80 registers the blocks fit beside two of inner_kernel.
__global__ __maxnreg__(80) void outer_kernel(const __grid_constant__ Outer p) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ uint4 zeros[kZeroWords];
  __shared__ float sums[kMaxTopK + 1][kTileRows];
  __shared__ Choice choice;
  const int lane = threadIdx.x % kWarp, slot = threadIdx.x / kWarp;
  const bool routed = slot < p.top_k;
  const int groups = routed ? p.routed_groups : p.shared_groups;
  const int stretches = (p.most_groups + kAhead - 1) / kAhead;
  Half* const x = reinterpret_cast<Half*>(shared) + slot * stretches * kAhead * kGroup;
  if (slot == 0) choose(p.e.logits, p.experts, p.top_k, lane, choice);
  if (threadIdx.x < kZeroWords) zeros[threadIdx.x] = uint4{};
  __syncthreads();
  const Tiles w =
      routed ? at(p.routed.down, p.routed.down_codes, p.routed.down_scales, choice.expert[slot]) : p.shared.down;
  const int row = blockIdx.x * groups;
  InFlight flight;
  const auto load = [&](int from) { load_tiles(flight, share(w, row + from, lane), groups - from, lane); };
  load(0);
  const float weight = choice.weight[slot];
  wait_for_previous();
  launch_next();
  // A lane holds 16 columns of a group, the whole warp eight groups.
  const uint4* const inner = reinterpret_cast<const uint4*>(p.e.inner + size_t(slot) * p.most_groups * kGroup);
  float sum[2] = {};
  for (int from = 0; from < groups; from += kAhead) {
    if (from != 0) load(from);
    float mine = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int word = (from * 4 + lane) * 2 + half;
      const uint4 v = from + lane / 4 < groups ? inner[word] : uint4{};
      reinterpret_cast<uint4*>(x)[word] = v;
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 two = __half22float2(as_half2(words[j]));
        mine += two.x + two.y;
      }
    }
    mine += __shfl_xor_sync(0xffffffff, mine, 1);
    mine += __shfl_xor_sync(0xffffffff, mine, 2);
    __syncwarp();
    const Columns c = columns(x + from * kGroup, zeros, lane);
#pragma unroll
    for (int q = 0; q < kAhead / kQuad; ++q) {
      const float total = __shfl_sync(0xffffffff, mine, 4 * (kQuad * q + lane % kQuad));
      add_quad(sum, flight, q, c, total);
    }
  }
  sum_tiles(sum);
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
                const DeviceLinear& shared_gate, const StepExperts& e) {
  CHECK(router.format == DeviceLinear::Format::kAffine8 && shared_gate.format == DeviceLinear::Format::kAffine8 &&
            router.in <= kMaxInput && router.out <= kMostExperts,
        "a router that the step has no kernel for");
  const Route p{x,
                gamma,
                eps,
                router.in,
                router.out,
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
  CHECK(routed.hidden <= kMaxInput, "experts that the step has no kernel for");
  const int groups = routed.hidden / kGroup, widest = std::max(routed.width, shared.width);
  const Inner p{expert_of(routed), expert_of(shared), routed.experts, top_k, groups,
                routed.width,      shared.width,      widest,         e};
  launch(inner_kernel, dim3(widest / kTileRows, top_k + 1), kThreads, input_bytes(groups), stream, p);
}

void step_outer(Stream stream, const DeviceExperts& routed, const DeviceExperts& shared, int top_k,
                const StepExperts& e, float* y, bool add) {
  CHECK(top_k <= kMaxTopK && routed.experts <= kMostExperts, "more experts than the step has a kernel for");
  const int routed_groups = routed.width / kGroup, shared_groups = shared.width / kGroup;
  const int groups = std::max(routed_groups, shared_groups);
  const Outer p{
      expert_of(routed), expert_of(shared), routed.experts, top_k, routed_groups, shared_groups, groups, e, y, add};
  const int padded = (groups + kAhead - 1) / kAhead * kAhead;
  launch(outer_kernel, routed.hidden / kTileRows, (top_k + 1) * kWarp, (top_k + 1) * padded * kGroup * sizeof(Half),
         stream, p);
}

}  // namespace calla::cuda
