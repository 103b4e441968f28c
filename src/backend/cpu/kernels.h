#pragma once

// The kernels of the CPU backend, one table of function pointers per instruction set. A kernel knows pointers and
// strides, no model, no thread and no memory but what it is handed; ops_cpu.* cuts the work into tasks and calls them.
// docs/add-a-kernel.md tells how to add one.
//
// Conventions. Strides of float data count elements, of weights bytes. No pointer needs more than the alignment of its
// type, and weight pointers (uint8_t) none at all. `n` is the length of a row and may be any positive number unless a
// kernel says "n % 64 == 0". bf16 values are passed as their bits. Outputs do not alias inputs unless a kernel says so.
// Every (row, token) result is summed in an order that depends on its own length only, never on how many rows or tokens
// share the call, so a batch may be cut and ordered at will.
//
// This header is included by files that are compiled for one ISA: it must define no inline function that the linker
// could share.

#include <cstdint>

namespace calla {

// Some rows of a weight matrix where they lie in the checkpoint (ops/linear.h), or some columns of them: groups·64
// weights a row.
struct WeightRows {
  const uint8_t* weight;  // bf16, 8-bit codes, or 4-bit codes with the even element in the low nibble
  const uint8_t* scales;  // bf16 [rows][groups]; unused for bf16 weights
  const uint8_t* biases;  // bf16 [rows][groups]
  int64_t weight_stride;  // bytes from row to row
  int64_t group_stride;   // bytes from row to row, of scales and of biases
  int rows;
  int groups;
};

// Rows of activations quantised to int8, one scale per group of 64: x ≈ scale·code in one plane, |code| ≤ 127; x ≈
// scale·(256·code + rest) in two, where rest is −128 to 127. In each group the 32 even elements come first, then the 32
// odd ones: the order in which a byte of 4-bit codes holds its nibbles.
struct QuantRows {
  int8_t* codes;  // [rows][groups·64]
  int8_t* rest;   // the same; null: one plane
  float* scales;  // [rows][groups]
  float* sums;    // [rows][groups]: Σ of what stands for x, which the affine bias is multiplied by
  int64_t code_stride;
  int64_t group_stride;
};
// What a code counts beside a rest: 1 << kRestBits.
inline constexpr int kRestBits = 8;

// A group whose largest magnitude is below this counts as zero: scales and their inverses stay normal numbers.
inline constexpr float kQuantZero = 1e-33f;

// A tile of weights, expanded from nibbles to bytes and turned so that one vector holds four neighbouring codes of
// several rows. It has 16 blocks of one group of 16 rows each: 16 rows × 16 groups, or 32 rows × 8 groups, whichever
// its table prefers. About 18 KiB: it stays in L1 while every token of a pass meets it.
inline constexpr int kBlockRows = 16;
inline constexpr int kTileBlocks = 16;
struct WeightTile {
  // [block][quad of the QuantRows order][row][4], or what else expand_tile and tile_product of a table agree on; a
  // group's blocks, one or two, are neighbours.
  alignas(64) uint8_t codes[kTileBlocks][16][kBlockRows][4];
  alignas(64) float scales[kTileBlocks][kBlockRows];
  alignas(64) float biases[kTileBlocks][kBlockRows];
  // What will be expanded next: tile_product asks memory for it, a little with each block of tokens. Only a hint; rows
  // == 0: unknown. Set by whoever owns the tile.
  WeightRows next;
};

// Query rows of one block of attention, eight at a time; see attend_page.
inline constexpr int kQueryLanes = 8;
// Query rows of a strip of attention; see attend_strip.
inline constexpr int kStripLanes = 32;
// Value columns of one call of delta_scan.
inline constexpr int kScanColumns = 32;

struct KernelTable {
  const char* isa;
  int tile_rows;    // of a WeightTile: 16 or 32
  int tile_groups;  // 16 or 8

  // y = x · (mean(x²) + eps)^-½ ⊙ gamma. y may be x.
  void (*rmsnorm)(const float* x, const float* gamma, float eps, int n, float* y) noexcept;
  // x += y, then h = rmsnorm(x).
  void (*add_rmsnorm)(float* x, const float* y, const float* gamma, float eps, int n, float* h) noexcept;
  // y = rmsnorm(o) ⊙ gamma ⊙ silu(z). y may be o.
  void (*gated_rmsnorm)(const float* o, const float* gamma, const float* z, float eps, int n, float* y) noexcept;
  // y = x · (Σx² + eps)^-½ · scale.
  void (*l2norm)(const float* x, float eps, float scale, int n, float* y) noexcept;
  // y += a·x.
  void (*axpy)(float a, const float* x, int n, float* y) noexcept;
  // y = silu(gate) ⊙ up. y may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, int n, float* y) noexcept;
  // y = x · a ⊙ σ(gate). y may be x.
  void (*sigmoid_mul)(const float* x, float a, const float* gate, int n, float* y) noexcept;
  // Turns the pairs (j, j+32) of x[0..64) by the angles with these cosines and sines [32].
  void (*rope)(float* x, const float* cos, const float* sin) noexcept;
  // Round to nearest, ties to even.
  void (*to_bf16)(const float* x, int n, uint16_t* y) noexcept;

  // One row of quantised activations, in two planes unless rest is null: the largest of a group is 127, or 127·256,
  // steps; rounded to nearest. n % 64 == 0. NaN gives unspecified codes.
  void (*quantize)(const float* x, int n, int8_t* codes, int8_t* rest, float* scales, float* sums) noexcept;

  // y[t·y_stride + r] = W_r · x_t, weights as they are, activations in f32; x_t is row index[t] of x. For few tokens:
  // every weight is converted once per token.
  using GemvF32 = void (*)(const WeightRows& w, const float* x, int64_t x_stride, const int32_t* index, int count,
                           float* y, int64_t y_stride) noexcept;
  GemvF32 gemv_bf16;
  GemvF32 gemv_q8;
  GemvF32 gemv_q4;
  // One row of weights → f32. row[groups·64].
  using Expand = void (*)(const WeightRows& w, int r, float* row) noexcept;
  Expand expand_bf16;
  Expand expand_q8;
  Expand expand_q4;
  // y[t·y_stride + r] = w_r · x_t for `rows` (1..4) expanded rows [rows][n]. n % 64 == 0. The f32 product for many
  // tokens.
  void (*dots)(const float* w, int rows, const float* x, int64_t x_stride, const int32_t* index, int count, int n,
               float* y, int64_t y_stride) noexcept;
  // As gemv_q4, with quantised activations: exact in int32 inside a group, f32 across groups. For few tokens.
  void (*gemv_q4_int8)(const WeightRows& w, const QuantRows& x, const int32_t* index, int count, float* y,
                       int64_t y_stride) noexcept;
  // Fills a tile from w.rows (1..tile_rows) rows and w.groups (1..tile_groups) groups; missing rows repeat the last
  // one.
  void (*expand_tile)(const WeightRows& w, WeightTile* tile) noexcept;
  // y[t·y_stride + r] += Σ over the tile's groups, for r < rows; the activations' groups start at first_group. `first`
  // overwrites y instead.
  void (*tile_product)(const WeightTile& tile, int rows, int groups, const QuantRows& x, int first_group,
                       const int32_t* index, int count, bool first, float* y, int64_t y_stride) noexcept;

  // One token of the causal convolution of n channels: y = silu(Σ_j conv[c][j]·u_j), u = (oldest, middle, newest, x).
  // In place on x; the input x is kept in `oldest`, which the caller then counts as the newest.
  void (*conv_silu)(float* x, const float* conv, float* oldest, const float* middle, const float* newest,
                    int n) noexcept;

  // The gated delta rule for 32 value columns of one head, `count` tokens in order: S ← alpha·S ; u = beta(v − Sᵀk) ; S
  // ← S + k ⊗ u ; o = Sᵀq. S: 128 rows of 32 columns, s_stride apart. q, k: [count][128], normalised. v, o: rows of 32,
  // strided. kq[t] = k_t·q_t. next: rows of 32 columns, kGdnDim apart, that the next call will read; they are asked
  // for, but not needed.
  void (*delta_scan)(float* S, int64_t s_stride, const float* q, const float* k, const float* kq, const float* v,
                     int64_t v_stride, const float* alpha, const float* beta, int count, float* o, int64_t o_stride,
                     const float* next) noexcept;

  // Flash attention of eight query rows with one page: adds up to 64 positions to running sums. q: [8][256], scaled
  // already. keys, values: bf16 [64][256]; positions [0, visible[r]) of the page count for row r (0: none), `span` =
  // max visible. peak, total: [8], o: [8][256]; start from peak = −inf, total = 0, o = 0. Result: o/total. scores:
  // scratch [64][8]. next_keys: [64][256] that the next call will read; they are asked for, but not needed.
  void (*attend_page)(const float* q, const uint16_t* keys, const uint16_t* values, const uint16_t* next_keys,
                      const int32_t* visible, int span, float* peak, float* total, float* o, float* scores) noexcept;
  // The same for 32 query rows, turned so that neighbouring lanes of a vector are neighbouring rows: every product is
  // then one of blocks in registers, without sums across lanes. q, o: [256][32]; visible, peak, total: [32]; scores:
  // scratch [64][32]. keys, values: f32 [64][256], converted once for all strips that meet a page; keys past `span` may
  // be anything, values past it are not read.
  void (*attend_strip)(const float* q, const float* keys, const float* values, const int32_t* visible, int span,
                       float* peak, float* total, float* o, float* scores) noexcept;

  // y = exp(x) and σ(x): the vector forms that the kernels above use, exported for the tests of their error.
  void (*exp)(const float* x, int n, float* y) noexcept;
  void (*sigmoid)(const float* x, int n, float* y) noexcept;
};

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;  // only in builds for x86-64
// Only in builds for x86-64: replaces the kernels of kAvx2Kernels that AVX-512 does better, and of those the ones that
// AMX does better.
void use_avx512_kernels(KernelTable* table) noexcept;
void use_amx_kernels(KernelTable* table) noexcept;
extern const KernelTable kNeonKernels;  // only in builds for AArch64; wants the dot products of ARMv8.2
// Only in builds for AArch64: replaces the kernels of kNeonKernels that I8MM does better.
void use_neon_i8mm_kernels(KernelTable* table) noexcept;

}  // namespace calla
