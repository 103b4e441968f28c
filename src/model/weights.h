#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "formats/checkpoint.h"
#include "formats/config.h"
#include "ops/linear.h"

namespace calla {

// The weights of the model, by the names of the checkpoint. Matrices are views into the mapped file; vectors are f32
// copies with the "+1" of zero-centred norms already in.

struct Attention {
  Linear q;                           // [heads·512, hidden]: per head 256 query rows, then 256 gate rows
  Linear k, v;                        // [kv_heads·256, hidden]
  Linear o;                           // [hidden, heads·256]
  std::vector<float> q_norm, k_norm;  // [256]
};

struct DeltaNet {
  Linear qkv;                         // [(2·k_heads + v_heads)·128, hidden]
  Linear z;                           // [v_heads·128, hidden]
  Linear b, a;                        // [v_heads, hidden]
  Linear out;                         // [hidden, v_heads·128]
  std::vector<float> conv;            // [channels, 4], tap 3 is the current token
  std::vector<float> A_log, dt_bias;  // [v_heads]
  std::vector<float> norm;            // [128], plain weight in every form
};

struct Layer {
  bool attends = false;
  std::vector<float> norm1, norm2;  // [hidden]: before the mixer, before the experts
  Attention attn;                   // if attends
  DeltaNet gdn;                     // otherwise
  Moe moe;
};

struct Weights {
  ModelConfig config;
  Linear tokens;  // [vocab, hidden]
  std::vector<Layer> layers;
  std::vector<float> norm;  // [hidden]
  Linear head;              // [vocab, hidden]
  bool has_mtp = false;     // MTP tensors are present (found, checked, not yet used)

  // Bytes of weights that one decoded token reads: what memory bandwidth bounds decode by.
  uint64_t bytes_per_token() const;
};

// Finds every tensor that the config asks for, checks dtype, shape and byte range, and refuses tensors that it does not
// know. Vision tensors are skipped by name. The checkpoint must outlive the weights.
Result<Weights> bind_weights(const Checkpoint& checkpoint);

}  // namespace calla
