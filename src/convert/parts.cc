#include "convert/parts.h"

#include <fmt/format.h>

#include "ops/dims.h"

namespace calla {
namespace {

using Kind = Part::Kind;

// Collects parts under one prefix.
struct List {
  std::vector<Part> parts;

  void matrix(std::string name, const Linear& w, int bits = 4) {
    parts.push_back({Kind::kMatrix, std::move(name), {w.out, w.in}, bits, Dtype::kU32, {w}});
  }
  void vector(Kind kind, std::string name, std::vector<int64_t> shape, const std::vector<float>& values) {
    parts.push_back({kind, std::move(name), std::move(shape), 0, Dtype::kBf16, {}, &values});
  }
  void norm(const std::string& name, const std::vector<float>& values) {
    vector(Kind::kNorm, name + ".weight", {static_cast<int64_t>(values.size())}, values);
  }
  void experts(const std::string& name, const std::vector<Mlp>& all, Linear Mlp::*member) {
    Part part{Kind::kMatrix, name, {}, 4, Dtype::kU32, {}};
    for (const Mlp& expert : all) part.matrices.push_back(expert.*member);
    const Linear& one = part.matrices.front();
    part.shape = {static_cast<int64_t>(all.size()), one.out, one.in};
    parts.push_back(std::move(part));
  }

  void attention(const std::string& p, const Attention& w) {
    matrix(p + "q_proj", w.q);
    matrix(p + "k_proj", w.k);
    matrix(p + "v_proj", w.v);
    matrix(p + "o_proj", w.o);
    norm(p + "q_norm", w.q_norm);
    norm(p + "k_norm", w.k_norm);
  }
  void delta_net(const std::string& p, const DeltaNet& w) {
    const auto heads = static_cast<int64_t>(w.A_log.size());
    matrix(p + "in_proj_qkv", w.qkv);
    matrix(p + "in_proj_z", w.z);
    matrix(p + "in_proj_b", w.b);
    matrix(p + "in_proj_a", w.a);
    matrix(p + "out_proj", w.out);
    vector(Kind::kConv, p + "conv1d.weight", {w.qkv.out, kConvTaps, 1}, w.conv);
    vector(Kind::kALog, p + "A_log", {heads}, w.A_log);
    vector(Kind::kDtBias, p + "dt_bias", {heads}, w.dt_bias);
    vector(Kind::kGdnNorm, p + "norm.weight", {kGdnDim}, w.norm);
  }
  // The router and the gate of the shared expert decide discretely, so MLX gives them 8 bits.
  void moe(const std::string& p, const Moe& w) {
    matrix(p + "gate", w.router, 8);
    experts(p + "switch_mlp.gate_proj", w.experts, &Mlp::gate);
    experts(p + "switch_mlp.up_proj", w.experts, &Mlp::up);
    experts(p + "switch_mlp.down_proj", w.experts, &Mlp::down);
    matrix(p + "shared_expert.gate_proj", w.shared.gate);
    matrix(p + "shared_expert.up_proj", w.shared.up);
    matrix(p + "shared_expert.down_proj", w.shared.down);
    matrix(p + "shared_expert_gate", w.shared_gate, 8);
  }
  void layer(const std::string& p, const Layer& w) {
    norm(p + "input_layernorm", w.norm1);
    if (w.attends) {
      attention(p + "self_attn.", w.attn);
    } else {
      delta_net(p + "linear_attn.", w.gdn);
    }
    norm(p + "post_attention_layernorm", w.norm2);
    moe(p + "mlp.", w.moe);
  }
};

Linear empty(int out, int in) {
  Linear w;
  w.out = out;
  w.in = in;
  return w;
}

Layer empty_layer(const ModelConfig& c, bool attends) {
  Layer layer;
  layer.attends = attends;
  layer.norm1.resize(c.hidden);
  layer.norm2.resize(c.hidden);
  if (attends) {
    layer.attn = {empty(c.heads * 2 * kHeadDim, c.hidden),
                  empty(c.kv_heads * kHeadDim, c.hidden),
                  empty(c.kv_heads * kHeadDim, c.hidden),
                  empty(c.hidden, c.heads * kHeadDim),
                  std::vector<float>(kHeadDim),
                  std::vector<float>(kHeadDim)};
  } else {
    const int inner = c.v_heads * kGdnDim;
    layer.gdn.qkv = empty(c.conv_channels(), c.hidden);
    layer.gdn.z = empty(inner, c.hidden);
    layer.gdn.b = layer.gdn.a = empty(c.v_heads, c.hidden);
    layer.gdn.out = empty(c.hidden, inner);
    layer.gdn.conv.resize(size_t(c.conv_channels()) * kConvTaps);
    layer.gdn.A_log.resize(c.v_heads);
    layer.gdn.dt_bias.resize(c.v_heads);
    layer.gdn.norm.resize(kGdnDim);
  }
  const auto mlp = [&](int width) {
    return Mlp{empty(width, c.hidden), empty(width, c.hidden), empty(c.hidden, width)};
  };
  layer.moe = {empty(c.experts, c.hidden), std::vector<Mlp>(c.experts, mlp(c.expert_width)), mlp(c.shared_width),
               empty(1, c.hidden), c.top_k};
  return layer;
}

}  // namespace

std::vector<TensorSpec> Part::tensors() const {
  if (kind != Kind::kMatrix) return {{name, dtype, shape}};
  std::vector<int64_t> words = shape, groups_shape = shape;
  words.back() = shape.back() * bits / 32;
  groups_shape.back() = shape.back() / kGroup;
  return {{name + ".weight", Dtype::kU32, words},
          {name + ".scales", Dtype::kBf16, groups_shape},
          {name + ".biases", Dtype::kBf16, groups_shape}};
}

uint64_t Part::bytes() const {
  uint64_t sum = 0;
  for (const TensorSpec& tensor : tensors()) sum += tensor.bytes();
  return sum;
}

uint64_t Part::values_count() const {
  uint64_t n = 1;
  for (const int64_t dim : shape) n *= static_cast<uint64_t>(dim);
  return n;
}

std::vector<Part> list_parts(const Weights& w) {
  List list;
  list.matrix("language_model.model.embed_tokens", w.tokens);
  for (size_t l = 0; l < w.layers.size(); ++l) {
    list.layer(fmt::format("language_model.model.layers.{}.", l), w.layers[l]);
  }
  list.norm("language_model.model.norm", w.norm);
  if (!w.config.tied) list.matrix("language_model.lm_head", w.head);
  return std::move(list.parts);
}

std::vector<Part> list_mtp_parts(const Mtp& mtp) {
  List list;
  list.matrix("mtp.fc", mtp.fc);
  list.norm("mtp.pre_fc_norm_embedding", mtp.norm_embedding);
  list.norm("mtp.pre_fc_norm_hidden", mtp.norm_hidden);
  list.layer("mtp.layers.0.", mtp.layer);
  list.norm("mtp.norm", mtp.norm);
  return std::move(list.parts);
}

Weights skeleton(const ModelConfig& c, bool mtp) {
  Weights w;
  w.config = c;
  w.tokens = w.head = empty(c.vocab, c.hidden);
  w.norm.resize(c.hidden);
  for (int l = 0; l < c.layers; ++l) w.layers.push_back(empty_layer(c, c.attends[l]));
  if (mtp) {
    const std::vector<float> norm(c.hidden);
    w.mtp = Mtp{empty(c.hidden, 2 * c.hidden), norm, norm, empty_layer(c, true), norm};
  }
  return w;
}

}  // namespace calla
