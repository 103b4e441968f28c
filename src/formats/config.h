#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace calla {

// config.json of a checkpoint, checked. Either form: Hugging Face bf16, or MLX affine 4-bit (a `quantization` block).
struct ModelConfig {
  int hidden = 0;  // multiple of 64, as every matrix width
  int layers = 0;
  std::vector<bool> attends;     // [layers]: full attention (true) or Gated DeltaNet (false)
  int vocab = 0;                 // rows of the embedding and the head, padding included
  int heads = 0, kv_heads = 0;   // full attention; head_dim is 256
  int k_heads = 0, v_heads = 0;  // delta net; head dims are 128
  int experts = 0, top_k = 0;
  int expert_width = 0, shared_width = 0;
  int max_positions = 0;
  float norm_eps = 1e-6f;
  double rope_theta = 1e7;
  int mtp_layers = 0;        // declared; what counts is whether the tensors are there
  bool tied = false;         // the head is the embedding
  std::vector<int32_t> eos;  // union of all ids that config.json names, ascending

  // MLX quantisation; bits 0 means "not quantised".
  struct Quantization {
    int bits = 0;  // default of all quantised matrices
    int group = 64;
    std::map<std::string, int, std::less<>> overrides;  // module name → bits (0: left unquantised)
    int bits_of(std::string_view module) const;         // module: its full name in the file, without ".weight"
  } quantization;

  int attention_layers() const;
  int delta_layers() const { return layers - attention_layers(); }
  int conv_channels() const { return (2 * k_heads + v_heads) * 128; }
};

// Parses the text of config.json. Errors name the key, its value and what was expected. Keys that change nothing here
// are ignored; a key that asks for another computation (a bias, another activation, YaRN, dense layers) is
// kUnsupported.
Result<ModelConfig> parse_config(std::string_view json);

// generation_config.json: defaults for sampling. Absent keys keep the defaults below (greedy off, no filters).
struct GenerationConfig {
  bool do_sample = true;
  float temperature = 1.0f;
  int top_k = 0;  // 0: no limit
  float top_p = 1.0f;
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::vector<int32_t> eos;
};
Result<GenerationConfig> parse_generation_config(std::string_view json);

}  // namespace calla
