#pragma once

// Softmax attention over paged keys and values. The equations are those of ops/ops.h (norm_rope, attend).
//
// A page holds 64 positions: [attention layers][keys, values][kv_heads][64][256] bf16; page p of a run lies at pool +
// runs.pages[p]·page_size. All pointers are to device memory; a multiple of 16 bytes each. Queries, keys, values and
// probabilities are rounded to bf16, everything else is f32. Nothing here allocates or waits; results are the same bits
// every time.

#include <cstddef>
#include <cstdint>

#include "backend/cuda/chip.h"
#include "backend/cuda/types.h"

namespace calla::cuda {

// The angle of pair j at a position, as the fraction of a turn: position·of[j] in units of 2^-64, whole turns
// overflowing. So angles are right to 2^-40 turns at all positions below 2^18.
struct RopeTurns {
  uint64_t of[kRotary / 2];
};
RopeTurns rope_turns(double theta);

// What turns raw projections into queries and keys.
struct QkNorm {
  const float* q_norm;  // [256]
  const float* k_norm;  // [256]
  float eps;
  RopeTurns turns;
};

// Decode: runs of one row each, up to 64 of them. Positions are read on the device, so that a captured launch may be
// replayed while they grow; `splits` is how many parts a context may be cut into (attend_step_splits), and any context
// can be had with any.
//
// qg: [m, heads, 2, 256], k, v: [m, kv_heads, 256], raw; they are not changed. Normalises and turns q and k, appends k
// and v to the pages, and o[i][h·256+d] = softmax(q·Kᵀ/16 over positions ≤ own)·V ⊙ σ(gate), f16 [m, heads·256].
//
// Keys and values of earlier positions are read before the kernel ahead in the stream has ended: between two calls for
// one layer lies at least one other kernel.
void attend_step(Stream stream, const float* qg, const float* k, const float* v, const QkNorm& norm,
                 const DeviceRun* runs, int run_count, const StateSizes& sizes, int attention_layer, uint16_t* pool,
                 int splits, float* scratch, Half* o);
// Parts for contexts of up to `max_context` positions, so that the multiprocessors are busy; at least 1.
int attend_step_splits(int run_count, int kv_heads, int max_context, int multiprocessors);
// Floats of scratch that attend_step needs.
size_t attend_step_scratch(int run_count, int heads, int splits);

// Runs of any number of rows; those of one row as above. m: rows of the pass. No run gets longer than max_context.
void attend_pass(Stream stream, const float* qg, const float* k, const float* v, const QkNorm& norm,
                 const DeviceRun* runs, int run_count, int m, const StateSizes& sizes, int attention_layer,
                 uint16_t* pool, Half* o, int max_context, float* scratch, const Chip& chip = current_chip());
// Floats of scratch that attend_pass and attend_step need for up to so many runs, whatever their contexts.
size_t attend_pass_scratch(int run_count, const StateSizes& sizes, int multiprocessors);

}  // namespace calla::cuda
