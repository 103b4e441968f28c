#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/file.h"
#include "formats/printable.h"
#include "ops/dims.h"

namespace calla {
namespace {

using Shape = std::vector<int64_t>;
constexpr size_t kSmall = 1 << 16;  // bytes: every vector of the model fits

// Looks tensors up by name and remembers which were used. The first problem is kept; after it every call returns
// something empty, so that the functions below read as a list of the model's tensors.
class Binder {
 public:
  explicit Binder(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), quantization_(checkpoint.config().quantization) {}

  bool ok() const { return !error_; }
  const Error& error() const { return *error_; }
  bool has(std::string_view name) const { return checkpoint_.tensors().contains(name); }
  bool has_prefix(std::string_view prefix) const {
    const auto it = checkpoint_.tensors().lower_bound(prefix);
    return it != checkpoint_.tensors().end() && it->first.starts_with(prefix);
  }

  void refuse(Error::Code code, std::string message) {
    if (!error_) error_ = Error{code, std::move(message)};
  }

  // The matrix `module`.weight, bf16 or quantised. rows: its shape without the input side, [out] or [experts, out].
  // `listed`: the quantization block of the config speaks of this module.
  Linear matrix(const std::string& module, const Shape& rows, int in, bool listed = true) {
    if (!has(module + ".scales")) {
      const auto& overrides = quantization_.overrides;
      if (const auto it = overrides.find(module); it != overrides.end() && it->second != 0) {
        refuse(Error::Code::kNotFound,
               fmt::format("{}: tensor {}.scales is missing, config.json says {} bits", where(), module, it->second));
      }
      return plain_matrix(module + ".weight", rows, in);
    }
    const TensorView* weight = find(module + ".weight");
    if (weight == nullptr) return {};
    const int64_t words = weight->shape.empty() ? 0 : weight->shape.back();
    const int bits = words * 32 == int64_t{in} * 8 ? 8 : 4;
    if (const int said = quantization_.bits_of(module); listed && said != bits && words * 32 == int64_t{in} * bits) {
      refuse(Error::Code::kInvalid,
             fmt::format("{}: tensor {}.weight holds {}-bit codes, config.json says {}", checkpoint_.file_of(*weight),
                         module, bits, said == 0 ? "it is not quantised" : fmt::format("{} bits", said)));
    }
    Linear w = sized(rows, in);
    w.format = bits == 8 ? Linear::Format::kAffine8 : Linear::Format::kAffine4;
    w.weight = data(module + ".weight", Dtype::kU32, extended(rows, in * bits / 32));
    w.scales = data(module + ".scales", Dtype::kBf16, extended(rows, in / kGroup));
    w.biases = data(module + ".biases", Dtype::kBf16, extended(rows, in / kGroup));
    return w;
  }

  Linear plain_matrix(const std::string& name, const Shape& rows, int in) {
    Linear w = sized(rows, in);
    w.weight = data(name, Dtype::kBf16, extended(rows, in));
    return w;
  }

  // A small tensor as f32, with `plus` added to each value.
  std::vector<float> vector(const std::string& name, const Shape& shape, float plus = 0.0f) {
    const TensorView* tensor = find(name);
    if (tensor == nullptr) return {};
    const bool narrow = tensor->dtype != Dtype::kF32;
    const std::byte* p = data(name, narrow ? Dtype::kBf16 : Dtype::kF32, shape);
    if (p == nullptr) return {};
    std::vector<float> values(tensor->data.size() / dtype_bytes(tensor->dtype));
    copied_ += sizeof(float) * values.size();
    for (size_t i = 0; i < values.size(); ++i) {
      if (narrow) {
        values[i] = load_bf16(p, i);
      } else {
        std::memcpy(&values[i], p + 4 * i, 4);
      }
      values[i] += plus;
      if (!std::isfinite(values[i])) {
        refuse(Error::Code::kInvalid,
               fmt::format("{}: tensor {} is not finite at index {}", checkpoint_.file_of(*tensor), name, i));
        return {};
      }
    }
    return values;
  }

  const TensorView* find(const std::string& name) {
    if (error_) return nullptr;
    const auto it = checkpoint_.tensors().find(name);
    if (it == checkpoint_.tensors().end()) {
      refuse(Error::Code::kNotFound, fmt::format("{}: tensor {} is missing", where(), name));
      return nullptr;
    }
    used_.insert(&it->second);
    return &it->second;
  }

  // After everything is bound: what is left must be the vision tower.
  void refuse_leftovers() {
    if (error_) return;
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      if (used_.contains(&tensor) || name.starts_with("vision_tower.") || name.starts_with("model.visual.")) continue;
      refuse(Error::Code::kInvalid, fmt::format("{}: tensor {} is not part of the model that config.json describes",
                                                checkpoint_.file_of(tensor), printable(name)));
      return;
    }
  }

  // The bytes of all tensors that were found, neighbours joined.
  std::vector<std::span<const std::byte>> parts() const {
    std::vector<std::span<const std::byte>> found, joined;
    for (const TensorView* tensor : used_) {
      if (!tensor->data.empty()) found.push_back(tensor->data);
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.data() < b.data(); });
    for (const auto& part : found) {
      if (joined.empty() || joined.back().data() + joined.back().size() != part.data()) {
        joined.push_back(part);
      } else {
        joined.back() = {joined.back().data(), joined.back().size() + part.size()};
      }
    }
    return joined;
  }

  uint64_t copied() const { return copied_; }
  std::string where() const { return checkpoint_.dir().string(); }

 private:
  static Shape extended(Shape rows, int64_t last) {
    rows.push_back(last);
    return rows;
  }
  static Linear sized(const Shape& rows, int in) {
    Linear w;
    w.out = 1;
    for (const int64_t n : rows) w.out *= static_cast<int>(n);
    w.in = in;
    return w;
  }

  const std::byte* data(const std::string& name, Dtype dtype, const Shape& shape) {
    const TensorView* tensor = find(name);
    if (tensor == nullptr) return nullptr;
    if (tensor->shape != shape) {
      refuse(Error::Code::kInvalid,
             fmt::format("{}: tensor {} has shape [{}], expected [{}]", checkpoint_.file_of(*tensor), name,
                         fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")));
      return nullptr;
    }
    if (tensor->dtype != dtype) {
      refuse(Error::Code::kUnsupported,
             fmt::format("{}: tensor {} has dtype {}, expected {}", checkpoint_.file_of(*tensor), name,
                         dtype_name(tensor->dtype), dtype_name(dtype)));
      return nullptr;
    }
    return tensor->data.data();
  }

  const Checkpoint& checkpoint_;
  const ModelConfig::Quantization& quantization_;
  std::unordered_set<const TensorView*> used_;
  uint64_t copied_ = 0;
  std::optional<Error> error_;
};

// How a checkpoint spells the model.
struct Form {
  std::string body;    // prefix of the layers
  std::string head;    // module of the output matrix
  bool raw = false;    // as trained: zero-centred norms want +1, conv1d is [channels, 1, taps]
  bool listed = true;  // the quantization block speaks of these modules
  float plus() const { return raw ? 1.0f : 0.0f; }
};

Form find_form(Binder& b, const ModelConfig& c) {
  const std::array<std::pair<const char*, const char*>, 3> spellings{
      {{"language_model.model.", "language_model.lm_head"},
       {"model.language_model.", "lm_head"},
       {"model.", "lm_head"}}};
  for (const auto& [body, head] : spellings) {
    if (!b.has(std::string(body) + "embed_tokens.weight")) continue;
    Form form{body, head};
    // Only the shape of the convolution tells the two forms apart: names are mixed by re-saving, MTP weights occur in
    // both.
    for (int l = 0; l < c.layers && b.ok(); ++l) {
      if (c.attends[l]) continue;
      const TensorView* conv = b.find(fmt::format("{}layers.{}.linear_attn.conv1d.weight", body, l));
      form.raw = conv != nullptr && !conv->shape.empty() && conv->shape.back() != 1;
      return form;
    }
    form.raw = !form.body.starts_with("language_model.");
    return form;
  }
  b.refuse(Error::Code::kNotFound,
           fmt::format("{}: no embed_tokens.weight under language_model.model., model.language_model. or model.",
                       b.where()));
  return {};
}

Attention bind_attention(Binder& b, const ModelConfig& c, const Form& form, const std::string& p) {
  Attention w;
  w.q = b.matrix(p + "q_proj", {c.heads * 2 * kHeadDim}, c.hidden, form.listed);
  w.k = b.matrix(p + "k_proj", {c.kv_heads * kHeadDim}, c.hidden, form.listed);
  w.v = b.matrix(p + "v_proj", {c.kv_heads * kHeadDim}, c.hidden, form.listed);
  w.o = b.matrix(p + "o_proj", {c.hidden}, c.heads * kHeadDim, form.listed);
  w.q_norm = b.vector(p + "q_norm.weight", {kHeadDim}, form.plus());
  w.k_norm = b.vector(p + "k_norm.weight", {kHeadDim}, form.plus());
  return w;
}

DeltaNet bind_delta_net(Binder& b, const ModelConfig& c, const Form& form, const std::string& p) {
  DeltaNet w;
  w.qkv = b.matrix(p + "in_proj_qkv", {c.conv_channels()}, c.hidden);
  w.z = b.matrix(p + "in_proj_z", {c.v_heads * kGdnDim}, c.hidden);
  w.b = b.matrix(p + "in_proj_b", {c.v_heads}, c.hidden);
  w.a = b.matrix(p + "in_proj_a", {c.v_heads}, c.hidden);
  w.out = b.matrix(p + "out_proj", {c.hidden}, c.v_heads * kGdnDim);
  // Both shapes lie in memory alike.
  w.conv = b.vector(p + "conv1d.weight",
                    form.raw ? Shape{c.conv_channels(), 1, kConvTaps} : Shape{c.conv_channels(), kConvTaps, 1});
  w.A_log = b.vector(p + "A_log", {c.v_heads});
  w.dt_bias = b.vector(p + "dt_bias", {c.v_heads});
  w.norm = b.vector(p + "norm.weight", {kGdnDim});
  return w;
}

// Routed experts occur in three spellings: stacked, as MLX writes them; gate and up fused, as trained; one tensor per
// expert and matrix.
std::vector<Mlp> bind_experts(Binder& b, const ModelConfig& c, const Form& form, const std::string& p) {
  const int width = c.expert_width;
  std::vector<Mlp> experts(c.experts);
  const bool fused = b.has(p + "experts.gate_up_proj");
  if (b.has(p + "experts.0.gate_proj.weight")) {
    for (int e = 0; e < c.experts && b.ok(); ++e) {
      const std::string one = fmt::format("{}experts.{}.", p, e);
      experts[e].gate = b.matrix(one + "gate_proj", {width}, c.hidden, form.listed);
      experts[e].up = b.matrix(one + "up_proj", {width}, c.hidden, form.listed);
      experts[e].down = b.matrix(one + "down_proj", {c.hidden}, width, form.listed);
    }
    return experts;
  }
  Linear gate, up, down;  // of all experts, one below the other
  if (fused || form.raw) {
    gate = b.plain_matrix(p + "experts.gate_up_proj", {c.experts, 2 * width}, c.hidden);
    down = b.plain_matrix(p + "experts.down_proj", {c.experts, c.hidden}, width);
  } else {
    gate = b.matrix(p + "switch_mlp.gate_proj", {c.experts, width}, c.hidden, form.listed);
    up = b.matrix(p + "switch_mlp.up_proj", {c.experts, width}, c.hidden, form.listed);
    down = b.matrix(p + "switch_mlp.down_proj", {c.experts, c.hidden}, width, form.listed);
  }
  if (!b.ok()) return experts;
  for (int e = 0; e < c.experts; ++e) {
    experts[e].gate = fused ? gate.rows(2 * e * width, width) : gate.rows(e * width, width);
    experts[e].up = fused ? gate.rows((2 * e + 1) * width, width) : up.rows(e * width, width);
    experts[e].down = down.rows(e * c.hidden, c.hidden);
  }
  return experts;
}

Moe bind_moe(Binder& b, const ModelConfig& c, const Form& form, const std::string& p) {
  Moe w;
  w.router = b.matrix(p + "gate", {c.experts}, c.hidden, form.listed);
  w.experts = bind_experts(b, c, form, p);
  w.shared.gate = b.matrix(p + "shared_expert.gate_proj", {c.shared_width}, c.hidden, form.listed);
  w.shared.up = b.matrix(p + "shared_expert.up_proj", {c.shared_width}, c.hidden, form.listed);
  w.shared.down = b.matrix(p + "shared_expert.down_proj", {c.hidden}, c.shared_width, form.listed);
  w.shared_gate = b.matrix(p + "shared_expert_gate", {1}, c.hidden, form.listed);
  w.top_k = c.top_k;
  return w;
}

Layer bind_layer(Binder& b, const ModelConfig& c, const Form& form, const std::string& p, bool attends) {
  Layer layer;
  layer.attends = attends;
  layer.norm1 = b.vector(p + "input_layernorm.weight", {c.hidden}, form.plus());
  layer.norm2 = b.vector(p + "post_attention_layernorm.weight", {c.hidden}, form.plus());
  if (attends) {
    layer.attn = bind_attention(b, c, form, p + "self_attn.");
  } else {
    layer.gdn = bind_delta_net(b, c, form, p + "linear_attn.");
  }
  layer.moe = bind_moe(b, c, form, p + "mlp.");
  return layer;
}

std::optional<Mtp> bind_mtp(Binder& b, const ModelConfig& c) {
  for (const std::string p : {"mtp.", "language_model.mtp.", "model.mtp."}) {
    if (!b.has_prefix(p)) continue;
    // The head is often copied into a checkpoint of the other form, so its own experts tell how it is stored.
    const Form form{p, "", /*raw=*/!b.has_prefix(p + "layers.0.mlp.switch_mlp."), /*listed=*/false};
    Mtp mtp;
    mtp.fc = b.matrix(p + "fc", {c.hidden}, 2 * c.hidden, form.listed);
    mtp.norm_embedding = b.vector(p + "pre_fc_norm_embedding.weight", {c.hidden}, form.plus());
    mtp.norm_hidden = b.vector(p + "pre_fc_norm_hidden.weight", {c.hidden}, form.plus());
    mtp.layer = bind_layer(b, c, form, p + "layers.0.", true);
    mtp.norm = b.vector(p + "norm.weight", {c.hidden}, form.plus());
    return mtp;
  }
  return std::nullopt;
}

// f for every matrix of a layer that one token is multiplied with; for an expert, f gets the whole block.
template <class F>
void for_each_product(const Layer& layer, const F& f) {
  if (layer.attends) {
    const Attention& w = layer.attn;
    for (const Linear* m : {&w.q, &w.k, &w.v, &w.o}) f(*m);
  } else {
    const DeltaNet& w = layer.gdn;
    for (const Linear* m : {&w.qkv, &w.z, &w.b, &w.a, &w.out}) f(*m);
  }
  f(layer.moe.router);
  for (int i = 0; i < layer.moe.top_k; ++i) f(layer.moe.experts.front());
  f(layer.moe.shared);
  f(layer.moe.shared_gate);
}

}  // namespace

uint64_t Weights::bytes_per_token() const {
  uint64_t bytes = head.bytes();
  for (const Layer& layer : layers) {
    for_each_product(layer, [&](const auto& w) { bytes += w.bytes(); });
    const Attention& a = layer.attn;
    const DeltaNet& d = layer.gdn;
    bytes += sizeof(bf16) * (layer.attends ? a.q_norm.size() + a.k_norm.size()
                                           : d.conv.size() + d.A_log.size() + d.dt_bias.size() + d.norm.size());
  }
  return bytes;
}

uint64_t Weights::macs_per_token() const {
  uint64_t macs = 0;
  for (const Layer& layer : layers) for_each_product(layer, [&](const auto& w) { macs += w.macs(); });
  return macs;
}

Result<Weights> bind_weights(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config();
  if (c.top_k > kMaxTopK) {
    return fail(Error::Code::kUnsupported,
                fmt::format("{}: config.json: num_experts_per_tok is {}, at most {} are supported",
                            checkpoint.dir().string(), c.top_k, kMaxTopK));
  }
  // The vectors are copied below: ask for all of their pages at once, so that a cold disk serves them together.
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.data.size() <= kSmall && !name.ends_with(".scales") && !name.ends_with(".biases"))
      will_need(tensor.data);
  }
  Binder b(checkpoint);
  Weights w;
  w.config = c;
  const Form form = find_form(b, c);
  w.tokens = b.matrix(form.body + "embed_tokens", {c.vocab}, c.hidden);
  w.norm = b.vector(form.body + "norm.weight", {c.hidden}, form.plus());
  w.head = c.tied ? w.tokens : b.matrix(form.head, {c.vocab}, c.hidden);
  for (int l = 0; l < c.layers && b.ok(); ++l) {
    w.layers.push_back(bind_layer(b, c, form, fmt::format("{}layers.{}.", form.body, l), c.attends[l]));
  }
  w.mtp = bind_mtp(b, c);
  b.refuse_leftovers();
  if (!b.ok()) return tl::unexpected<Error>(b.error());
  w.parts = b.parts();
  w.copied = b.copied();
  return w;
}

}  // namespace calla
