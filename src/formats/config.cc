#include "formats/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/fields.h"
#include "formats/json.h"
#include "formats/printable.h"

namespace calla {
namespace {

using Json = nlohmann::json;

// Bounds that keep every product of two sizes inside an int and turn absurd numbers into errors; the model is far below
// all of them.
constexpr int kMaxLayers = 1024;
constexpr int kMaxHidden = 1 << 16;
constexpr int kMaxVocab = 1 << 22;
constexpr int kMaxHeads = 1024;
constexpr int kMaxExperts = 1 << 12;

// What the kernels are written for (ops/dims.h).
constexpr int kHeadDim = 256;
constexpr int kRotary = 64;
constexpr int kGdnDim = 128;
constexpr int kConvTaps = 4;

void read_sizes(Fields& f, ModelConfig& c) {
  c.hidden = f.width("hidden_size", kMaxHidden);
  c.layers = f.integer("num_hidden_layers", std::nullopt, 1, kMaxLayers);
  c.vocab = f.integer("vocab_size", std::nullopt, 1, kMaxVocab);
  c.heads = f.integer("num_attention_heads", std::nullopt, 1, kMaxHeads);
  c.kv_heads = f.integer("num_key_value_heads", std::nullopt, 1, kMaxHeads);
  if (c.heads % c.kv_heads != 0)
    f.refuse("num_key_value_heads", fmt::format("is {}, which does not divide {} heads", c.kv_heads, c.heads));
  c.k_heads = f.integer("linear_num_key_heads", std::nullopt, 1, kMaxHeads);
  c.v_heads = f.integer("linear_num_value_heads", std::nullopt, 1, kMaxHeads);
  if (c.v_heads % c.k_heads != 0)
    f.refuse("linear_num_key_heads", fmt::format("is {}, which does not divide {} value heads", c.k_heads, c.v_heads));
  c.experts = f.integer("num_experts", std::nullopt, 1, kMaxExperts);
  c.top_k = f.integer("num_experts_per_tok", std::nullopt, 1, kMaxExperts);
  if (c.top_k > c.experts)
    f.refuse("num_experts_per_tok", fmt::format("is {}, but there are {} experts", c.top_k, c.experts));
  c.expert_width = f.width("moe_intermediate_size", kMaxHidden);
  c.shared_width = f.width("shared_expert_intermediate_size", kMaxHidden);
  c.max_positions = f.integer("max_position_embeddings", 262144, 1, 1 << 30);
  c.norm_eps = static_cast<float>(f.real("rms_norm_eps", 1e-6, 1e-12, 1e-2));
  c.mtp_layers = f.integer("mtp_num_hidden_layers", 0, 0, kMaxLayers);
}

// Everything that the page of the model takes for granted.
void check_architecture(Fields& f) {
  f.only("head_dim", kHeadDim);
  f.only("linear_key_head_dim", kGdnDim);
  f.only("linear_value_head_dim", kGdnDim);
  f.only("linear_conv_kernel_dim", kConvTaps);
  f.only("hidden_act", "silu");
  f.only("attention_bias", false);
  f.only("attn_output_gate", true);
  f.only("norm_topk_prob", true);
  f.only("decoder_sparse_step", 1);
  f.only("mtp_use_dedicated_embeddings", false);
  const std::string gate = f.text("output_gate_type", "swish");
  if (gate != "swish" && gate != "silu") {
    f.refuse("output_gate_type", fmt::format("is \"{}\", only \"swish\" is supported", printable(gate)),
             Error::Code::kUnsupported);
  }
  if (const Json* dense = f.find("mlp_only_layers"); dense != nullptr && !(dense->is_array() && dense->empty())) {
    f.refuse("mlp_only_layers", "is not empty: layers without experts are not supported", Error::Code::kUnsupported);
  }
}

void read_layer_types(Fields& f, ModelConfig& c) {
  const int interval = f.integer("full_attention_interval", 4, 1, kMaxLayers);
  for (int l = 0; l < c.layers; ++l) c.attends.push_back((l + 1) % interval == 0);
  const Json* types = f.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || types->size() != static_cast<size_t>(c.layers)) {
    f.refuse("layer_types", fmt::format("is not a list of num_hidden_layers = {} entries", c.layers));
    return;
  }
  for (int l = 0; l < c.layers; ++l) {
    const Json& type = (*types)[l];
    c.attends[l] = type == "full_attention";
    if (!c.attends[l] && type != "linear_attention") {
      f.refuse("layer_types", fmt::format("entry {} is neither \"full_attention\" nor \"linear_attention\"", l),
               Error::Code::kUnsupported);
      return;
    }
  }
}

// Three spellings exist: rope_parameters, the older rope_scaling, and keys of text_config itself.
void read_rope(Fields& f, const std::string& path, ModelConfig& c, std::optional<Error>& error) {
  c.rope_theta = f.real("rope_theta", c.rope_theta, 1.0, 1e12);
  double partial = f.real("partial_rotary_factor", double{kRotary} / kHeadDim, 0.0, 1.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* object = f.object(key);
    if (object == nullptr) continue;
    Fields rope(*object, path + key + ".", error);
    const char* type_key = rope.find("rope_type") != nullptr ? "rope_type" : "type";
    const std::string type = rope.text(type_key, "default");
    // Multi-axis positions collapse to ordinary ones for text, so both names of them are the default.
    if (type != "default" && type != "mrope") {
      rope.refuse(type_key, fmt::format("is \"{}\", only \"default\" is supported", printable(type)),
                  Error::Code::kUnsupported);
    }
    c.rope_theta = rope.real("rope_theta", c.rope_theta, 1.0, 1e12);
    partial = rope.real("partial_rotary_factor", partial, 0.0, 1.0);
  }
  if (partial * kHeadDim != kRotary) {
    f.refuse("partial_rotary_factor", fmt::format("is {}, only {} is supported", partial, double{kRotary} / kHeadDim),
             Error::Code::kUnsupported);
  }
}

// One entry of the quantization block: bits, or 0 for "left as it is".
int read_bits(Fields& f) {
  f.only("group_size", 64);
  f.only("mode", "affine");
  const int bits = f.integer("bits", std::nullopt, 1, 64);
  if (bits != 4 && bits != 8)
    f.refuse("bits", fmt::format("is {}, only 4 and 8 are supported", bits), Error::Code::kUnsupported);
  return bits;
}

// MLX writes the same object as `quantization` and as `quantization_config`; other tools write only the second, in
// forms of their own.
void read_quantization(const Json& root, ModelConfig& c, std::optional<Error>& error) {
  Fields top(root, "", error);
  const char* key = top.find("quantization") != nullptr ? "quantization" : "quantization_config";
  const Json* block = top.object(key);
  if (block == nullptr) return;
  Fields f(*block, std::string(key) + ".", error);
  if (f.find("quant_method") != nullptr) {
    f.refuse("quant_method",
             fmt::format("is \"{}\", only MLX affine quantisation and bf16 are supported",
                         printable(f.text("quant_method", ""))),
             Error::Code::kUnsupported);
    return;
  }
  c.quantization.bits = read_bits(f);
  for (const auto& [name, value] : block->items()) {
    if (value.is_boolean()) {
      c.quantization.overrides[name] = value.get<bool>() ? c.quantization.bits : 0;
    } else if (value.is_object()) {
      Fields module(value, fmt::format("{}.{}.", key, printable(name)), error);
      c.quantization.overrides[name] = read_bits(module);
    } else if (name != "group_size" && name != "bits" && name != "mode") {
      f.refuse(printable(name), "is neither an object nor true or false");
    }
  }
}

}  // namespace

int ModelConfig::attention_layers() const {
  return static_cast<int>(std::count(attends.begin(), attends.end(), true));
}

int ModelConfig::Quantization::bits_of(std::string_view module) const {
  const auto it = overrides.find(module);
  return it == overrides.end() ? bits : it->second;
}

Result<ModelConfig> parse_config(std::string_view text) {
  CALLA_ASSIGN(const Json root, parse_json_object(text, "config.json"));
  std::optional<Error> error;
  ModelConfig c;
  Fields top(root, "", error);

  // A text-only file is the text_config itself.
  const std::string model_type = top.text("model_type", "");
  const Json* inner = top.object("text_config");
  const bool nested = inner != nullptr;
  if (model_type != "qwen3_5_moe" && model_type != "qwen3_5_moe_text") {
    top.refuse("model_type",
               model_type.empty() ? "is missing, expected \"qwen3_5_moe\""
                                  : fmt::format("is \"{}\", only \"qwen3_5_moe\" is supported", printable(model_type)),
               Error::Code::kUnsupported);
  }
  const std::string path = nested ? "text_config." : "";
  Fields f(nested ? *inner : root, path, error);
  if (nested) f.only("model_type", "qwen3_5_moe_text");
  check_architecture(f);
  read_sizes(f, c);
  read_layer_types(f, c);
  read_rope(f, path, c, error);
  read_quantization(root, c, error);
  c.tied = top.boolean("tie_word_embeddings", f.boolean("tie_word_embeddings", false));

  c.eos = top.ids("eos_token_id");
  if (nested) {
    const auto more = f.ids("eos_token_id");
    c.eos.insert(c.eos.end(), more.begin(), more.end());
  }
  std::sort(c.eos.begin(), c.eos.end());
  c.eos.erase(std::unique(c.eos.begin(), c.eos.end()), c.eos.end());
  if (!c.eos.empty() && c.eos.back() >= c.vocab) {
    top.refuse("eos_token_id", fmt::format("names id {}, but vocab_size is {}", c.eos.back(), c.vocab));
  }
  if (error) return fail(error->code, "config.json: " + error->message);
  return c;
}

Result<GenerationConfig> parse_generation_config(std::string_view text) {
  CALLA_ASSIGN(const Json root, parse_json_object(text, "generation_config.json"));
  std::optional<Error> error;
  Fields f(root, "", error);
  GenerationConfig g;
  g.do_sample = f.boolean("do_sample", g.do_sample);
  g.temperature = static_cast<float>(f.real("temperature", g.temperature, 0.0, 100.0));
  g.top_k = f.integer("top_k", g.top_k, 0, INT32_MAX);
  g.top_p = static_cast<float>(f.real("top_p", g.top_p, 0.0, 1.0));
  g.min_p = static_cast<float>(f.real("min_p", g.min_p, 0.0, 1.0));
  g.presence_penalty = static_cast<float>(f.real("presence_penalty", g.presence_penalty, -10.0, 10.0));
  g.repetition_penalty = static_cast<float>(f.real("repetition_penalty", g.repetition_penalty, 0.01, 100.0));
  g.eos = f.ids("eos_token_id");
  std::sort(g.eos.begin(), g.eos.end());
  g.eos.erase(std::unique(g.eos.begin(), g.eos.end()), g.eos.end());
  if (error) return fail(error->code, "generation_config.json: " + error->message);
  return g;
}

}  // namespace calla
