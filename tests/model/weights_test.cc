#include "model/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "convert/config_json.h"
#include "convert/parts.h"
#include "convert/synth.h"
#include "formats/printable.h"
#include "ops/dims.h"

namespace calla {
namespace {

// Tensors with storage, to be bound without files. All zeros unless a test writes something.
struct Tensors {
  std::vector<TensorSpec> specs;
  std::vector<std::unique_ptr<std::vector<std::byte>>> storage;

  TensorSpec& at(const std::string& name) {
    const auto it = std::find_if(specs.begin(), specs.end(), [&](const TensorSpec& s) { return s.name == name; });
    if (it == specs.end()) ADD_FAILURE() << "no tensor " << name;
    return *it;
  }
  void remove(const std::string& name) { specs.erase(specs.begin() + (&at(name) - specs.data())); }
  // Tensors under their final shape; odd addresses, because files promise none that is even.
  TensorMap map(const std::function<void(const TensorSpec&, std::byte*)>& fill = {}) {
    TensorMap tensors;
    for (const TensorSpec& spec : specs) {
      storage.push_back(std::make_unique<std::vector<std::byte>>(spec.bytes() + 1));
      std::byte* data = storage.back()->data() + 1;
      if (fill) fill(spec, data);
      tensors[spec.name] = {spec.dtype, spec.shape, {data, spec.bytes()}};
    }
    return tensors;
  }
};

Tensors mlx_tensors(const Weights& w) {
  Tensors t;
  auto parts = list_parts(w);
  if (w.mtp) {
    for (Part& part : list_mtp_parts(*w.mtp)) parts.push_back(std::move(part));
  }
  for (const Part& part : parts) {
    for (TensorSpec& spec : part.tensors()) t.specs.push_back(std::move(spec));
  }
  return t;
}

ModelConfig mlx_config(const Weights& w) {
  const std::string plain = make_config(w.config, 256);
  return *parse_config(*quantized_config(plain, "", list_parts(w)));
}

// The raw form by hand: names and shapes as Hugging Face has them, for the first tiny shape.
Tensors raw_tensors(const ModelConfig& c, const std::string& body, bool fused, Dtype a_log = Dtype::kBf16) {
  Tensors t;
  const auto add = [&](std::string name, std::vector<int64_t> shape, Dtype dtype = Dtype::kBf16) {
    t.specs.push_back({std::move(name), dtype, std::move(shape)});
  };
  add(body + "embed_tokens.weight", {c.vocab, c.hidden});
  add(body + "norm.weight", {c.hidden});
  add("lm_head.weight", {c.vocab, c.hidden});
  for (int l = 0; l < c.layers; ++l) {
    const std::string p = body + "layers." + std::to_string(l) + ".";
    add(p + "input_layernorm.weight", {c.hidden});
    add(p + "post_attention_layernorm.weight", {c.hidden});
    if (c.attends[l]) {
      add(p + "self_attn.q_proj.weight", {c.heads * 512, c.hidden});
      add(p + "self_attn.k_proj.weight", {c.kv_heads * 256, c.hidden});
      add(p + "self_attn.v_proj.weight", {c.kv_heads * 256, c.hidden});
      add(p + "self_attn.o_proj.weight", {c.hidden, c.heads * 256});
      add(p + "self_attn.q_norm.weight", {256});
      add(p + "self_attn.k_norm.weight", {256});
    } else {
      const int channels = (2 * c.k_heads + c.v_heads) * 128;
      add(p + "linear_attn.in_proj_qkv.weight", {channels, c.hidden});
      add(p + "linear_attn.in_proj_z.weight", {c.v_heads * 128, c.hidden});
      add(p + "linear_attn.in_proj_b.weight", {c.v_heads, c.hidden});
      add(p + "linear_attn.in_proj_a.weight", {c.v_heads, c.hidden});
      add(p + "linear_attn.out_proj.weight", {c.hidden, c.v_heads * 128});
      add(p + "linear_attn.conv1d.weight", {channels, 1, 4});
      add(p + "linear_attn.A_log", {c.v_heads}, a_log);
      add(p + "linear_attn.dt_bias", {c.v_heads});
      add(p + "linear_attn.norm.weight", {128});
    }
    add(p + "mlp.gate.weight", {c.experts, c.hidden});
    add(p + "mlp.shared_expert.gate_proj.weight", {c.shared_width, c.hidden});
    add(p + "mlp.shared_expert.up_proj.weight", {c.shared_width, c.hidden});
    add(p + "mlp.shared_expert.down_proj.weight", {c.hidden, c.shared_width});
    add(p + "mlp.shared_expert_gate.weight", {1, c.hidden});
    if (fused) {
      add(p + "mlp.experts.gate_up_proj", {c.experts, 2 * c.expert_width, c.hidden});
      add(p + "mlp.experts.down_proj", {c.experts, c.hidden, c.expert_width});
    } else {
      for (int e = 0; e < c.experts; ++e) {
        const std::string x = p + "mlp.experts." + std::to_string(e) + ".";
        add(x + "gate_proj.weight", {c.expert_width, c.hidden});
        add(x + "up_proj.weight", {c.expert_width, c.hidden});
        add(x + "down_proj.weight", {c.hidden, c.expert_width});
      }
    }
  }
  return t;
}

class BindTest : public testing::Test {
 protected:
  BindTest()
      : skeleton_(skeleton(*synth_shape("tiny"), true)),
        tensors_(mlx_tensors(skeleton_)),
        config_(mlx_config(skeleton_)) {}

  Result<Weights> bind() {
    checkpoint_ = Checkpoint::assemble(config_, tensors_.map());
    return bind_weights(checkpoint_);
  }
  void expect_refused(Error::Code code, const std::string& message) {
    const auto w = bind();
    ASSERT_FALSE(w) << message;
    EXPECT_EQ(w.error().code, code) << w.error().message;
    EXPECT_EQ(w.error().message, "memory: " + message);
  }
  const std::string layer0_ = "language_model.model.layers.0.", layer3_ = "language_model.model.layers.3.";
  Weights skeleton_;
  Tensors tensors_;
  ModelConfig config_;
  Checkpoint checkpoint_;
};

TEST_F(BindTest, BindsTheConvertedForm) {
  const auto w = bind();
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_TRUE(w->mtp.has_value());
  EXPECT_EQ(w->layers.size(), 4u);
  EXPECT_TRUE(w->layers[3].attends && !w->layers[0].attends);
  EXPECT_EQ(w->layers[0].moe.router.format, Linear::Format::kAffine8);
  EXPECT_EQ(w->layers[0].moe.experts[7].down.format, Linear::Format::kAffine4);
  EXPECT_EQ(w->layers[0].moe.experts[7].down.weight, w->layers[0].moe.experts[6].down.weight + 128 * 64 / 2);
  EXPECT_EQ(w->layers[0].norm1[5], 0.0f) << "the +1 is in the file";
}

TEST_F(BindTest, MtpIsToldByItsTensors) {
  std::erase_if(tensors_.specs, [](const TensorSpec& s) { return s.name.starts_with("mtp."); });
  ASSERT_EQ(config_.mtp_layers, 0);
  config_.mtp_layers = 1;  // promised, but not there: as in the published 4-bit checkpoint
  const auto w = bind();
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_FALSE(w->mtp.has_value());
}

TEST_F(BindTest, SkipsTheVisionTower) {
  tensors_.specs.push_back({"vision_tower.blocks.0.norm1.weight", Dtype::kF16, {3}});
  tensors_.specs.push_back({"model.visual.patch_embed.proj.bias", Dtype::kBf16, {3}});
  EXPECT_TRUE(bind());
}

TEST_F(BindTest, RefusesEveryMissingTensorByName) {
  for (const TensorSpec& spec : mlx_tensors(skeleton_).specs) {
    tensors_ = mlx_tensors(skeleton_);
    tensors_.remove(spec.name);
    const auto w = bind();
    ASSERT_FALSE(w) << spec.name;
    // Without its scales a matrix would be a bf16 one, so for these the complaint is about the codes.
    if (!spec.name.ends_with(".scales") && spec.name != "language_model.model.embed_tokens.weight") {
      EXPECT_EQ(w.error().message, "memory: tensor " + spec.name + " is missing");
    }
  }
}

TEST_F(BindTest, RefusesEveryWrongShapeAndDtype) {
  for (const TensorSpec& spec : mlx_tensors(skeleton_).specs) {
    tensors_ = mlx_tensors(skeleton_);
    tensors_.at(spec.name).shape.front() += 1;
    auto w = bind();
    ASSERT_FALSE(w) << spec.name;
    EXPECT_NE(w.error().message.find("tensor " + spec.name + " has shape ["), std::string::npos) << w.error().message;
    tensors_ = mlx_tensors(skeleton_);
    tensors_.at(spec.name).dtype = Dtype::kF16;
    w = bind();
    ASSERT_FALSE(w) << spec.name;
    EXPECT_EQ(w.error().code, Error::Code::kUnsupported);
    EXPECT_NE(w.error().message.find("tensor " + spec.name + " has dtype F16, expected "), std::string::npos)
        << w.error().message;
  }
}

TEST_F(BindTest, RefusesWhatItDoesNotKnow) {
  tensors_.specs.push_back({layer0_ + "mlp.expert_bias", Dtype::kBf16, {8}});
  expect_refused(Error::Code::kInvalid,
                 "tensor " + layer0_ + "mlp.expert_bias is not part of the model that config.json describes");
  tensors_.specs.back().name = "language_model.model.layers.4.input_layernorm.weight";
  expect_refused(Error::Code::kInvalid,
                 "tensor language_model.model.layers.4.input_layernorm.weight is not part of the model that "
                 "config.json describes");
  tensors_.specs.back().name = "evil\n\x1b[2J";
  expect_refused(Error::Code::kInvalid, "tensor evil\\x0a\\x1b[2J is not part of the model that config.json describes");
}

TEST_F(BindTest, BitsMustAgreeWithTheConfig) {
  config_.quantization.overrides.erase("language_model.model.layers.0.mlp.gate");
  expect_refused(Error::Code::kInvalid,
                 "tensor " + layer0_ + "mlp.gate.weight holds 8-bit codes, config.json says 4 bits");
  config_.quantization.overrides["language_model.model.layers.0.mlp.gate"] = 0;
  expect_refused(Error::Code::kInvalid,
                 "tensor " + layer0_ + "mlp.gate.weight holds 8-bit codes, config.json says it is not quantised");
}

TEST_F(BindTest, AModuleMayStayUnquantised) {
  const std::string module = layer3_ + "self_attn.k_proj";
  config_.quantization.overrides[module] = 0;
  tensors_.remove(module + ".scales");
  tensors_.remove(module + ".biases");
  tensors_.at(module + ".weight") = {module + ".weight", Dtype::kBf16, {256, 128}};
  const auto w = bind();
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_EQ(w->layers[3].attn.k.format, Linear::Format::kBf16);
  config_.quantization.overrides[module] = 8;
  expect_refused(Error::Code::kNotFound, "tensor " + module + ".scales is missing, config.json says 8 bits");
}

TEST_F(BindTest, VocabularyMustMatch) {
  config_.vocab = 400;
  expect_refused(Error::Code::kInvalid,
                 "tensor language_model.model.embed_tokens.weight has shape [320, 16], expected [400, 16]");
}

TEST_F(BindTest, TooManyExpertsPerToken) {
  config_.experts = config_.top_k = kMaxTopK + 1;
  const auto w = bind();
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().message, "memory: config.json: num_experts_per_tok is 17, at most 16 are supported");
}

TEST_F(BindTest, RefusesNumbersThatAreNotFinite) {
  const std::string name = layer0_ + "linear_attn.A_log";
  checkpoint_ = Checkpoint::assemble(config_, tensors_.map([&](const TensorSpec& spec, std::byte* data) {
    const uint16_t nan = 0x7fc0;
    if (spec.name == name) std::memcpy(data + 2, &nan, 2);
  }));
  const auto w = bind_weights(checkpoint_);
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().message, "memory: tensor " + name + " is not finite at index 1");
}

TEST_F(BindTest, BindsEverySpellingOfTheRawForm) {
  config_.quantization = {};
  for (const std::string body : {"model.language_model.", "model."}) {
    for (const bool fused : {true, false}) {
      for (const Dtype a_log : {Dtype::kBf16, Dtype::kF32}) {
        tensors_ = raw_tensors(config_, body, fused, a_log);
        const auto w = bind();
        ASSERT_TRUE(w) << w.error().message;
        EXPECT_FALSE(w->mtp.has_value());
        EXPECT_EQ(w->layers[0].norm1[0], 1.0f) << "zero-centred norms get their +1";
        EXPECT_EQ(w->layers[3].attn.q_norm[0], 1.0f);
        EXPECT_EQ(w->norm[0], 1.0f);
        EXPECT_EQ(w->layers[0].gdn.norm[0], 0.0f) << "the gated norm is plain in every form";
        const auto& e = w->layers[0].moe.experts;
        if (fused) {
          // Rows of each expert: gate, then up.
          EXPECT_EQ(e[0].up.weight - e[0].gate.weight, 64 * 128 * 2);
          EXPECT_EQ(e[1].gate.weight - e[0].gate.weight, 2 * 64 * 128 * 2);
        }
        EXPECT_EQ(e[7].down.out, 128);
        EXPECT_EQ(e[7].down.in, 64);
      }
    }
  }
}

TEST_F(BindTest, TheConvolutionAloneTellsTheForm) {
  config_.quantization = {};
  tensors_ = raw_tensors(config_, "model.language_model.", true);
  for (TensorSpec& spec : tensors_.specs) {
    if (spec.name.ends_with("conv1d.weight")) spec.shape = {spec.shape[0], 4, 1};
  }
  const auto w = bind();
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_EQ(w->layers[0].norm1[0], 0.0f);
  // One layer in the other form is an error, not a mixture.
  tensors_.at("model.language_model.layers.1.linear_attn.conv1d.weight").shape = {512, 1, 4};
  expect_refused(
      Error::Code::kInvalid,
      "tensor model.language_model.layers.1.linear_attn.conv1d.weight has shape [512, 1, 4], expected [512, 4, 1]");
}

TEST_F(BindTest, NoEmbedding) {
  tensors_.specs.clear();
  expect_refused(Error::Code::kNotFound,
                 "no embed_tokens.weight under language_model.model., model.language_model. or model.");
}

}  // namespace
}  // namespace calla
