#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
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

// The head that guesses one token further: x = fc·[norm(embedding of the next token); norm(hidden)], one layer, norm,
// the shared head.
struct Mtp {
  Linear fc;  // [hidden, 2·hidden], embedding half first
  std::vector<float> norm_embedding, norm_hidden;
  Layer layer;  // attends
  std::vector<float> norm;
};

struct Weights {
  ModelConfig config;
  Linear tokens;  // [vocab, hidden]
  std::vector<Layer> layers;
  std::vector<float> norm;  // [hidden]
  Linear head;              // [vocab, hidden]
  std::optional<Mtp> mtp;   // where its tensors are present: config.json promises it even when they are not
  // Where all of these lie in the checkpoint, in ascending order: what has to be in memory for the model to run.
  std::vector<std::span<const std::byte>> parts;
  uint64_t copied = 0;  // bytes of the vectors

  // Bytes of weights that one decoded token reads, as stored: what memory bandwidth bounds decode by. Leaves out the
  // embedding row and the layer norms (0.02 %).
  uint64_t bytes_per_token() const;
  // Multiplications of one token of a prompt with the weights: what the int8 rate bounds prefill by. Leaves out the
  // head, which a prompt needs for its last token only.
  uint64_t macs_per_token() const;
};

// Finds every tensor that the config asks for, checks dtype and shape, and refuses tensors that it does not know
// (kInvalid; a tensor that is not there is kNotFound). Vision tensors are skipped by name. The checkpoint must outlive
// the weights. docs/formats.md has the names. Whether a checkpoint is raw (zero-centred norms) is told by the shape of
// conv1d alone.
Result<Weights> bind_weights(const Checkpoint& checkpoint);

}  // namespace calla
