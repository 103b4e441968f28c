#pragma once

// The mixture of experts of passes of several rows. The choices of all tokens are sorted by expert into slots; the
// tokens of an expert are then multiplied together, a tile of slots at a time. All of it happens on the device: grids
// are sized for the worst case, and blocks without a tile leave at once. Device pointers throughout.

#include "backend/cuda/memory.h"
#include "backend/cuda/types.h"

namespace calla::cuda {

// Slots [first, first+count) are tokens of one expert; expert = number of routed experts: the shared one.
struct ExpertTile {
  int32_t expert, first, count, pad;
};

// Which tokens go to which experts. Slots [0, m·top_k): by expert, within it by token. Slots m·top_k + i: token i at
// the shared expert.
struct Routing {
  int max_rows = 0, experts = 0, top_k = 0;
  int32_t* chosen;      // [m][top_k] experts of a token, best first, ties to the lower index
  float* weight;        // [m][top_k + 1], softmax over the chosen; the last is σ(shared gate)
  int32_t* slot_of;     // [m][top_k]
  int32_t* slot_token;  // [m·(top_k + 1)]
  uint32_t* members;    // [experts][⌈m/32⌉] bit j of word c: token 32c + j chose the expert
  int32_t* before;      // [experts][⌈m/32⌉] slots of the expert that earlier words have
  int32_t* slots;       // [experts] slots of the expert
  ExpertTile* tiles;
  int32_t* tile_count;

  // Room for passes of up to max_rows rows. experts ≤ 512, top_k ≤ kMaxTopK.
  static Routing take(Arena& arena, int max_rows, int experts, int top_k);
};

// Fills `r` for a pass of m ≥ 1 rows. router_logits: [m, experts], shared_logits: [m].
void choose_experts(Stream stream, const float* router_logits, const float* shared_logits, int m, const Routing& r);

// inner[slot] = silu(gate·h) ⊙ up·h for each slot's expert and token. h: [m, hidden]; inner: [m·top_k][width], then
// [m][width of the shared expert]. Products as in products.h.
void experts_inner(Stream stream, const DeviceExperts& routed, const DeviceExperts& shared, const Half* h, int m,
                   const Routing& r, Half* inner);

// y[i] (+)= Σ weight·(down·inner) over the slots of token i in the order of `chosen`, the shared one last. partial:
// [m·(top_k+1)][hidden], scratch. y: [m, hidden].
void experts_outer(Stream stream, const DeviceExperts& routed, const DeviceExperts& shared, const Half* inner, int m,
                   const Routing& r, Half* partial, float* y, bool add);

}  // namespace calla::cuda
