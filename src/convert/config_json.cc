#include "convert/config_json.h"

#include <nlohmann/json.hpp>

#include "formats/json.h"
#include "ops/dims.h"

namespace calla {
namespace {

using Json = nlohmann::json;

Json quantization_block(const std::vector<Part>& body) {
  Json block = {{"group_size", kGroup}, {"bits", 4}, {"mode", "affine"}};
  for (const Part& part : body) {
    if (part.kind == Part::Kind::kMatrix && part.bits != 4)
      block[part.name] = {{"group_size", kGroup}, {"bits", part.bits}};
  }
  return block;
}

}  // namespace

Result<std::string> quantized_config(std::string_view config, std::string_view generation_config,
                                     const std::vector<Part>& body) {
  CALLA_ASSIGN(Json json, parse_json_object(config, "config.json"));
  if (!generation_config.empty()) {
    CALLA_ASSIGN(const Json generation, parse_json_object(generation_config, "generation_config.json"));
    if (generation.contains("eos_token_id")) json["eos_token_id"] = generation["eos_token_id"];
  }
  json["quantization"] = json["quantization_config"] = quantization_block(body);
  return json.dump(4) + "\n";
}

std::string make_config(const ModelConfig& c, int32_t first_control) {
  const auto id = [&](int control) { return first_control + control; };
  Json types = Json::array();
  for (const bool attends : c.attends) types.push_back(attends ? "full_attention" : "linear_attention");
  const Json rope = {{"mrope_interleaved", true},
                     {"mrope_section", {11, 11, 10}},
                     {"partial_rotary_factor", 0.25},
                     {"rope_theta", c.rope_theta},
                     {"rope_type", "default"}};
  const Json text = {{"model_type", "qwen3_5_moe_text"},
                     {"hidden_size", c.hidden},
                     {"num_hidden_layers", c.layers},
                     {"layer_types", types},
                     {"vocab_size", c.vocab},
                     {"num_attention_heads", c.heads},
                     {"num_key_value_heads", c.kv_heads},
                     {"head_dim", kHeadDim},
                     {"attention_bias", false},
                     {"attention_dropout", 0.0},
                     {"attn_output_gate", true},
                     {"linear_num_key_heads", c.k_heads},
                     {"linear_num_value_heads", c.v_heads},
                     {"linear_key_head_dim", kGdnDim},
                     {"linear_value_head_dim", kGdnDim},
                     {"linear_conv_kernel_dim", kConvTaps},
                     {"mamba_ssm_dtype", "float32"},
                     {"num_experts", c.experts},
                     {"num_experts_per_tok", c.top_k},
                     {"moe_intermediate_size", c.expert_width},
                     {"shared_expert_intermediate_size", c.shared_width},
                     {"rms_norm_eps", 1e-6},
                     {"hidden_act", "silu"},
                     {"max_position_embeddings", c.max_positions},
                     {"dtype", "bfloat16"},
                     {"initializer_range", 0.02},
                     {"partial_rotary_factor", 0.25},
                     {"rope_parameters", rope},
                     {"tie_word_embeddings", c.tied},
                     {"bos_token_id", id(0)},
                     {"eos_token_id", id(0)},
                     {"mtp_num_hidden_layers", c.mtp_layers},
                     {"mtp_use_dedicated_embeddings", false},
                     {"use_cache", true}};
  const Json root = {{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                     {"model_type", "qwen3_5_moe"},
                     {"text_config", text},
                     {"tie_word_embeddings", c.tied},
                     {"vision_start_token_id", id(9)},
                     {"vision_end_token_id", id(10)},
                     {"image_token_id", id(12)},
                     {"video_token_id", id(13)}};
  return root.dump(4) + "\n";
}

}  // namespace calla
