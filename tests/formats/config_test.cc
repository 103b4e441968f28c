#include "formats/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace calla {
namespace {

using Json = nlohmann::json;

// The official config.json, as far as it matters here.
Json official() {
  Json types = Json::array();
  for (int l = 0; l < 40; ++l) types.push_back(l % 4 == 3 ? "full_attention" : "linear_attention");
  return {{"model_type", "qwen3_5_moe"},
          {"tie_word_embeddings", false},
          {"vision_config", {{"depth", 27}}},
          {"text_config",
           {{"model_type", "qwen3_5_moe_text"},
            {"attention_bias", false},
            {"attn_output_gate", true},
            {"eos_token_id", 248044},
            {"full_attention_interval", 4},
            {"head_dim", 256},
            {"hidden_act", "silu"},
            {"hidden_size", 2048},
            {"layer_types", types},
            {"linear_conv_kernel_dim", 4},
            {"linear_key_head_dim", 128},
            {"linear_num_key_heads", 16},
            {"linear_num_value_heads", 32},
            {"linear_value_head_dim", 128},
            {"max_position_embeddings", 262144},
            {"moe_intermediate_size", 512},
            {"mtp_num_hidden_layers", 1},
            {"num_attention_heads", 16},
            {"num_experts", 256},
            {"num_experts_per_tok", 8},
            {"num_hidden_layers", 40},
            {"num_key_value_heads", 2},
            {"pad_token_id", nullptr},
            {"rms_norm_eps", 1e-6},
            {"rope_parameters",
             {{"mrope_interleaved", true},
              {"mrope_section", {11, 11, 10}},
              {"partial_rotary_factor", 0.25},
              {"rope_theta", 10000000},
              {"rope_type", "default"}}},
            {"shared_expert_intermediate_size", 512},
            {"vocab_size", 248320}}}};
}

void expect_official(const ModelConfig& c) {
  EXPECT_EQ(c.hidden, 2048);
  EXPECT_EQ(c.layers, 40);
  EXPECT_EQ(c.attention_layers(), 10);
  EXPECT_EQ(c.delta_layers(), 30);
  EXPECT_TRUE(c.attends[3] && c.attends[39] && !c.attends[0]);
  EXPECT_EQ(c.vocab, 248320);
  EXPECT_EQ(c.heads, 16);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.conv_channels(), 8192);
  EXPECT_EQ(c.experts, 256);
  EXPECT_EQ(c.top_k, 8);
  EXPECT_EQ(c.expert_width, 512);
  EXPECT_EQ(c.max_positions, 262144);
  EXPECT_EQ(c.rope_theta, 1e7);
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-6f);
  EXPECT_FALSE(c.tied);
}

TEST(Config, ReadsTheOfficialFile) {
  const auto c = parse_config(official().dump());
  ASSERT_TRUE(c) << c.error().message;
  expect_official(*c);
  EXPECT_EQ(c->mtp_layers, 1);
  EXPECT_EQ(c->eos, std::vector<int32_t>{248044});
  EXPECT_EQ(c->quantization.bits, 0);
}

TEST(Config, ReadsOtherSpellingsAndDefaults) {
  Json text_only = official()["text_config"];  // a text-only file is the text_config itself
  expect_official(*parse_config(text_only.dump()));

  Json old = official();
  Json& text = old["text_config"];
  text.erase("rope_parameters");
  text["rope_scaling"] = {{"type", "default"}};
  text["rope_theta"] = 1e7;
  text["partial_rotary_factor"] = 0.25;
  expect_official(*parse_config(old.dump()));

  Json bare = official();
  for (const char* key :
       {"rope_parameters", "layer_types", "head_dim", "hidden_act", "attention_bias", "rms_norm_eps",
        "max_position_embeddings", "attn_output_gate", "linear_conv_kernel_dim", "full_attention_interval"}) {
    bare["text_config"].erase(key);
  }
  expect_official(*parse_config(bare.dump()));

  Json odd = official();
  odd["text_config"]["output_gate_type"] = "swish";
  odd["text_config"]["mlp_only_layers"] = Json::array();
  odd["text_config"]["rope_parameters"]["type"] = "default";
  odd["language_model_only"] = false;
  expect_official(*parse_config(odd.dump()));
}

TEST(Config, ReadsTheQuantizationBlock) {
  Json json = official();
  json["eos_token_id"] = {248046, 248044};
  json["quantization"] = {{"group_size", 64},
                          {"bits", 4},
                          {"mode", "affine"},
                          {"language_model.model.layers.0.mlp.gate", {{"group_size", 64}, {"bits", 8}}},
                          {"language_model.lm_head", false},
                          {"language_model.model.embed_tokens", true}};
  json["quantization_config"] = json["quantization"];
  const auto c = parse_config(json.dump());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->eos, (std::vector<int32_t>{248044, 248046})) << "both levels together";
  EXPECT_EQ(c->quantization.bits, 4);
  EXPECT_EQ(c->quantization.bits_of("language_model.model.layers.0.mlp.gate"), 8);
  EXPECT_EQ(c->quantization.bits_of("language_model.lm_head"), 0);
  EXPECT_EQ(c->quantization.bits_of("language_model.model.embed_tokens"), 4);
  EXPECT_EQ(c->quantization.bits_of("anything else"), 4);
}

TEST(Config, RefusesByKey) {
  struct Bad {
    const char* pointer;  // of the value to replace
    Json value;           // discarded: remove the key
    Error::Code code;
    const char* message;
  };
  using enum Error::Code;
  const Json gone(Json::value_t::discarded);
  const std::vector<Bad> cases = {
      {"/model_type", "llama", kUnsupported, "model_type is \"llama\", only \"qwen3_5_moe\" is supported"},
      {"/model_type", gone, kUnsupported, "model_type is missing"},
      {"/text_config/model_type", "qwen3_next", kUnsupported, "text_config.model_type is \"qwen3_next\""},
      {"/text_config", 7, kInvalid, "text_config is 7, expected an object"},
      {"/text_config/hidden_size", gone, kInvalid, "text_config.hidden_size is missing"},
      {"/text_config/hidden_size", 2000, kInvalid, "text_config.hidden_size is 2000, expected a multiple of 64"},
      {"/text_config/hidden_size", 2048.5, kInvalid,
       "text_config.hidden_size is 2048.5, expected an integer from 64 to"},
      {"/text_config/hidden_size", "2048", kInvalid, "text_config.hidden_size is \"2048\", expected an integer"},
      {"/text_config/hidden_size", 18446744073709551615ull, kInvalid,
       "text_config.hidden_size is 18446744073709551615"},
      {"/text_config/num_hidden_layers", -1, kInvalid,
       "text_config.num_hidden_layers is -1, expected an integer from 1"},
      {"/text_config/num_hidden_layers", 1 << 30, kInvalid, "text_config.num_hidden_layers is 1073741824"},
      {"/text_config/moe_intermediate_size", 500, kInvalid,
       "text_config.moe_intermediate_size is 500, expected a multiple of 64"},
      {"/text_config/num_key_value_heads", 3, kInvalid,
       "text_config.num_key_value_heads is 3, which does not divide 16 heads"},
      {"/text_config/linear_num_key_heads", 5, kInvalid,
       "text_config.linear_num_key_heads is 5, which does not divide 32"},
      {"/text_config/num_experts_per_tok", 257, kInvalid,
       "text_config.num_experts_per_tok is 257, but there are 256 experts"},
      {"/text_config/layer_types", Json::array({"full_attention"}), kInvalid,
       "text_config.layer_types is not a list of"},
      {"/text_config/layer_types/5", "mamba", kUnsupported, "text_config.layer_types entry 5 is neither"},
      {"/text_config/head_dim", 128, kUnsupported, "text_config.head_dim is 128, only 256 is supported"},
      {"/text_config/linear_conv_kernel_dim", 3, kUnsupported,
       "text_config.linear_conv_kernel_dim is 3, only 4 is supported"},
      {"/text_config/hidden_act", "gelu", kUnsupported,
       "text_config.hidden_act is \"gelu\", only \"silu\" is supported"},
      {"/text_config/attention_bias", true, kUnsupported,
       "text_config.attention_bias is true, only false is supported"},
      {"/text_config/attn_output_gate", false, kUnsupported,
       "text_config.attn_output_gate is false, only true is supported"},
      {"/text_config/norm_topk_prob", false, kUnsupported, "text_config.norm_topk_prob is false"},
      {"/text_config/mlp_only_layers", Json::array({1}), kUnsupported, "text_config.mlp_only_layers is not empty"},
      {"/text_config/rope_parameters/rope_type", "yarn", kUnsupported,
       "text_config.rope_parameters.rope_type is \"yarn\", only \"default\" is supported"},
      {"/text_config/rope_scaling", {{"type", "linear"}}, kUnsupported, "text_config.rope_scaling.type is \"linear\""},
      {"/text_config/rope_parameters/partial_rotary_factor", 0.5, kUnsupported,
       "text_config.partial_rotary_factor is 0.5, only 0.25"},
      {"/text_config/rope_parameters/rope_theta", -1, kInvalid, "text_config.rope_parameters.rope_theta is -1"},
      {"/text_config/rms_norm_eps", 0, kInvalid, "text_config.rms_norm_eps is 0, expected a number from"},
      {"/text_config/eos_token_id", 248320, kInvalid, "eos_token_id names id 248320, but vocab_size is 248320"},
      {"/eos_token_id", {1, "2"}, kInvalid, "eos_token_id is [1,\"2\"], expected a token id or a list"},
      {"/quantization", {{"group_size", 32}, {"bits", 4}}, kUnsupported, "quantization.group_size is 32, only 64"},
      {"/quantization", {{"group_size", 64}, {"bits", 3}}, kUnsupported, "quantization.bits is 3, only 4 and 8"},
      {"/quantization", {{"bits", 4}, {"mode", "mxfp4"}}, kUnsupported, "quantization.mode is \"mxfp4\""},
      {"/quantization", {{"bits", 4}, {"a.b", 3}}, kInvalid, "quantization.a.b is neither an object nor true or false"},
      {"/quantization", {{"bits", 4}, {"a.b", {{"bits", 6}}}}, kUnsupported, "quantization.a.b.bits is 6"},
      {"/quantization_config", {{"quant_method", "fp8"}}, kUnsupported, "quantization_config.quant_method is \"fp8\""},
  };
  for (const Bad& bad : cases) {
    Json json = official();
    const Json::json_pointer pointer(bad.pointer);
    if (bad.value.is_discarded()) {
      json[pointer.parent_pointer()].erase(pointer.back());
    } else {
      json[pointer] = bad.value;
    }
    const auto result = parse_config(json.dump());
    ASSERT_FALSE(result) << bad.pointer << " " << bad.message;
    EXPECT_EQ(result.error().code, bad.code) << bad.message;
    EXPECT_NE(result.error().message.find(std::string("config.json: ") + bad.message), std::string::npos)
        << result.error().message << "\nexpected " << bad.message;
  }
}

TEST(Config, RefusesWhatIsNotStrictJson) {
  for (const std::string& text : {std::string(), std::string("[]"), std::string("{"), std::string("{} {}"),
                                  std::string("{\"a\":1,}"), std::string("{\"\xff\":1}"), std::string(1 << 20, '['),
                                  "{\"a\":" + std::string(1 << 16, '[') + std::string(1 << 16, ']') + "}"}) {
    const auto result = parse_config(text);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Error::Code::kInvalid);
    EXPECT_LT(result.error().message.size(), 200u);
  }
  const auto twice = parse_config(R"({"model_type":"qwen3_5_moe","model_type":"qwen3_5_moe"})");
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().message, "config.json: key \"model_type\" appears twice");
}

TEST(GenerationConfig, ReadsTheOfficialFileAndDefaults) {
  const auto g = parse_generation_config(
      R"({"bos_token_id":248044,"do_sample":true,"eos_token_id":[248046,248044],"temperature":1.0,"top_k":20,"top_p":0.95,"min_p":null})");
  ASSERT_TRUE(g) << g.error().message;
  EXPECT_TRUE(g->do_sample);
  EXPECT_EQ(g->top_k, 20);
  EXPECT_FLOAT_EQ(g->top_p, 0.95f);
  EXPECT_EQ(g->min_p, 0.0f);
  EXPECT_EQ(g->eos, (std::vector<int32_t>{248044, 248046}));
  EXPECT_EQ(parse_generation_config("{}")->temperature, 1.0f);
  const auto bad = parse_generation_config(R"({"top_p":1.5})");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message, "generation_config.json: top_p is 1.5, expected a number from 0 to 1");
}

}  // namespace
}  // namespace calla
