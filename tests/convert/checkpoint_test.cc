// Whole checkpoints: written by synth, turned by quantize, read by the loader.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "convert/config_json.h"
#include "convert/quantize.h"
#include "convert/synth.h"
#include "formats/safetensors_writer.h"
#include "model/weights.h"
#include "tests/formats/scratch_dir.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

void synth(const fs::path& out, bool hf, bool mtp, uint64_t seed = 1) {
  SynthOptions options;
  options.shape = *synth_shape("tiny");
  options.hf = hf;
  options.mtp = mtp;
  options.seed = seed;
  const auto done = write_synth(out, options);
  ASSERT_TRUE(done) << done.error().message;
}

std::string content(const fs::path& path) {
  return *read_file(path);
}

float value(const TensorView& t, size_t i) {
  if (t.dtype == Dtype::kF32) {
    float v;
    std::memcpy(&v, t.data.data() + 4 * i, 4);
    return v;
  }
  return load_bf16(t.data.data(), i);
}

// A value of a quantised matrix, from the definition of the packing.
float value(const Checkpoint& c, const std::string& module, size_t row, size_t col, size_t in, int bits) {
  const auto& words = c.tensors().at(module + ".weight").data;
  uint32_t word;
  std::memcpy(&word, words.data() + 4 * (row * in * bits / 32 + col * bits / 32), 4);
  const uint32_t code = (word >> (col * bits % 32)) & ((1u << bits) - 1);
  const size_t group = row * (in / 64) + col / 64;
  return value(c.tensors().at(module + ".scales"), group) * float(code) +
         value(c.tensors().at(module + ".biases"), group);
}

// The rule, plainly, for one group of a tensor: what w becomes.
std::array<float, 64> ruled(const TensorView& t, size_t first, int bits) {
  std::array<float, 64> w;
  float low = 3e38f, high = 0;
  for (int i = 0; i < 64; ++i) {
    w[i] = value(t, first + i);
    low = std::fmin(low, w[i]);
    high = std::fmax(high, w[i]);
  }
  const float n = float((1 << bits) - 1);
  float scale = std::fmax((high - low) / n, 1e-7f);
  const bool side = std::fabs(low) > std::fabs(high);
  const float edge = side ? low : high;
  scale = side ? scale : -scale;
  const float q0 = std::round(edge / scale);
  const float bias = q0 == 0 ? 0 : edge;
  if (q0 != 0) scale = edge / q0;
  for (float& x : w) x = to_f32(to_bf16(scale)) * std::fmin(std::round((x - bias) / scale), n) + to_f32(to_bf16(bias));
  return w;
}

TEST(RoundTrip, QuantisedWeightsAreThoseOfTheRule) {
  const ScratchDir hf, mlx;
  synth(hf.path(), true, true);
  const auto done = quantize_checkpoint(hf.path(), mlx.path(), {});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_TRUE(done->mtp && done->tokenizer);
  const auto from = Checkpoint::open(hf.path()), to = Checkpoint::open(mlx.path());
  ASSERT_TRUE(from && to);
  const auto weights = bind_weights(*to);
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_TRUE(weights->mtp.has_value());

  // Hugging Face name, its first row, MLX module, its first row, rows, width, bits.
  struct Pair {
    std::string hf;
    size_t hf_row;
    std::string mlx;
    size_t mlx_row, rows, in;
    int bits;
  };
  const std::string h = "model.language_model.layers.", m = "language_model.model.layers.";
  std::vector<Pair> pairs = {
      {"model.language_model.embed_tokens.weight", 0, "language_model.model.embed_tokens", 0, 320, 128, 4},
      {"lm_head.weight", 0, "language_model.lm_head", 0, 320, 128, 4},
      {h + "0.linear_attn.in_proj_qkv.weight", 0, m + "0.linear_attn.in_proj_qkv", 0, 512, 128, 4},
      {h + "2.linear_attn.out_proj.weight", 0, m + "2.linear_attn.out_proj", 0, 128, 256, 4},
      {h + "3.self_attn.q_proj.weight", 0, m + "3.self_attn.q_proj", 0, 1024, 128, 4},
      {h + "1.mlp.gate.weight", 0, m + "1.mlp.gate", 0, 8, 128, 8},
      {h + "1.mlp.shared_expert_gate.weight", 0, m + "1.mlp.shared_expert_gate", 0, 1, 128, 8},
      {h + "1.mlp.experts.down_proj", 0, m + "1.mlp.switch_mlp.down_proj", 0, 8 * 128, 64, 4},
      {"mtp.fc.weight", 0, "mtp.fc", 0, 128, 256, 4},
      {"mtp.layers.0.mlp.gate.weight", 0, "mtp.layers.0.mlp.gate", 0, 8, 128, 8},
  };
  for (size_t e = 0; e < 8; ++e) {  // each expert: 64 rows of gate, then 64 of up
    pairs.push_back({h + "1.mlp.experts.gate_up_proj", e * 128, m + "1.mlp.switch_mlp.gate_proj", e * 64, 64, 128, 4});
    pairs.push_back(
        {h + "1.mlp.experts.gate_up_proj", e * 128 + 64, m + "1.mlp.switch_mlp.up_proj", e * 64, 64, 128, 4});
    pairs.push_back({"mtp.layers.0.mlp.experts.gate_up_proj", e * 128 + 64, "mtp.layers.0.mlp.switch_mlp.up_proj",
                     e * 64, 64, 128, 4});
  }
  for (const Pair& p : pairs) {
    ASSERT_TRUE(from->tensors().contains(p.hf)) << p.hf;
    ASSERT_TRUE(to->tensors().contains(p.mlx + ".weight")) << p.mlx;
    for (size_t r = 0; r < p.rows; ++r) {
      for (size_t c = 0; c < p.in; c += 64) {
        const auto want = ruled(from->tensors().at(p.hf), (p.hf_row + r) * p.in + c, p.bits);
        for (size_t i = 0; i < 64; ++i)
          ASSERT_EQ(value(*to, p.mlx, p.mlx_row + r, c + i, p.in, p.bits), want[i]) << p.mlx << " row " << r;
      }
    }
  }

  // Vectors: norms carry their +1, the others are as they were, the convolution has its axes moved.
  struct Same {
    std::string hf, mlx;
    float plus;
  };
  for (const Same& s : {Same{"model.language_model.norm.weight", "language_model.model.norm.weight", 1},
                        Same{h + "0.input_layernorm.weight", m + "0.input_layernorm.weight", 1},
                        Same{h + "3.self_attn.q_norm.weight", m + "3.self_attn.q_norm.weight", 1},
                        Same{"mtp.norm.weight", "mtp.norm.weight", 1},
                        Same{h + "0.linear_attn.norm.weight", m + "0.linear_attn.norm.weight", 0},
                        Same{h + "0.linear_attn.A_log", m + "0.linear_attn.A_log", 0},
                        Same{h + "0.linear_attn.conv1d.weight", m + "0.linear_attn.conv1d.weight", 0}}) {
    const TensorView &a = from->tensors().at(s.hf), &b = to->tensors().at(s.mlx);
    ASSERT_EQ(a.data.size(), b.data.size());
    for (size_t i = 0; i < a.data.size() / 2; ++i)
      ASSERT_EQ(value(b, i), to_f32(to_bf16(value(a, i) + s.plus))) << s.mlx << " " << i;
  }
  EXPECT_EQ(to->tensors().at(m + "0.linear_attn.conv1d.weight").shape, (std::vector<int64_t>{512, 4, 1}));
}

TEST(Quantize, WritesTheFolderThatOtherLoadersExpect) {
  const ScratchDir hf, mlx;
  synth(hf.path(), true, true);
  QuantizeOptions options;
  options.shard_bytes = 300'000;
  ASSERT_TRUE(quantize_checkpoint(hf.path(), mlx.path(), options));
  const std::vector<std::string> files = mlx.files();
  EXPECT_EQ(files.front(), "config.json");
  EXPECT_EQ(files.back(), "tokenizer.json");
  EXPECT_TRUE(fs::exists(mlx / "mtp.safetensors"));
  const auto index = nlohmann::json::parse(content(mlx / "model.safetensors.index.json"));
  uint64_t total = 0;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    EXPECT_TRUE(tensor.starts_with("language_model.")) << "loaders that know no MTP head must not see one";
    EXPECT_TRUE(shard.get<std::string>().starts_with("model-0000"));
  }
  const auto checkpoint = Checkpoint::open(mlx.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  for (const auto& [name, tensor] : checkpoint->tensors()) total += name.starts_with("mtp.") ? 0 : tensor.data.size();
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_NE(content(mlx / "mtp.safetensors").find(R"("__metadata__":{"format":"mlx"})"), std::string::npos);

  const auto config = nlohmann::json::parse(content(mlx / "config.json"));
  EXPECT_EQ(config["quantization"], config["quantization_config"]);
  EXPECT_EQ(config["quantization"]["bits"], 4);
  EXPECT_EQ(config["quantization"]["language_model.model.layers.3.mlp.gate"],
            (nlohmann::json{{"group_size", 64}, {"bits", 8}}));
  EXPECT_EQ(config["quantization"].size(), 3u + 2 * 4);
  EXPECT_EQ(config["eos_token_id"], (nlohmann::json{258, 256}));
  EXPECT_EQ(config["text_config"], nlohmann::json::parse(content(hf / "config.json"))["text_config"]);
}

TEST(Quantize, TakesUpAnInterruptedRun) {
  const ScratchDir hf, whole, parts;
  synth(hf.path(), true, false);
  QuantizeOptions options;
  options.shard_bytes = 200'000;
  ASSERT_TRUE(quantize_checkpoint(hf.path(), whole.path(), options));
  ASSERT_TRUE(quantize_checkpoint(hf.path(), parts.path(), options));
  ASSERT_GT(parts.files().size(), 6u);

  const auto again = quantize_checkpoint(hf.path(), parts.path(), options);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message.find("already holds a checkpoint"), std::string::npos) << again.error().message;

  // As a run leaves it that was stopped in its third shard, with a second shard that somebody has damaged.
  fs::remove(parts / "config.json");
  fs::remove(parts / "model.safetensors.index.json");
  ASSERT_TRUE(write_file(parts / ".calla-unfinished", ""));
  const std::string n = parts.files()[3].substr(11);  // "-of-0000N.safetensors"
  fs::remove(parts / ("model-00003" + n));
  ASSERT_TRUE(write_file(parts / ("model-00003" + n + ".part"), "half"));
  std::string damaged = content(parts / ("model-00002" + n));
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  ASSERT_TRUE(write_file(parts / ("model-00002" + n), damaged));
  EXPECT_FALSE(Checkpoint::open(parts.path())) << "unfinished";

  const auto resumed = quantize_checkpoint(hf.path(), parts.path(), options);
  ASSERT_TRUE(resumed) << resumed.error().message;
  EXPECT_GT(resumed->written.kept_bytes, 0u);
  EXPECT_LT(resumed->written.kept_bytes, resumed->written.bytes - 200'000);
  ASSERT_EQ(parts.files(), whole.files());
  for (const std::string& name : whole.files()) EXPECT_EQ(content(parts / name), content(whole / name)) << name;
}

TEST(Quantize, RefusesFoldersThatAreNotItsOwn) {
  const ScratchDir hf, other;
  synth(hf.path(), true, false);
  ASSERT_TRUE(write_file(other / "letter.txt", "dear"));
  const auto foreign = quantize_checkpoint(hf.path(), other.path(), {});
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().message,
            other.path().string() + " is not empty; choose another folder, or give --force to write into it");
  EXPECT_EQ(other.files(), std::vector<std::string>{"letter.txt"});
  QuantizeOptions force;
  force.force = true;
  EXPECT_TRUE(quantize_checkpoint(hf.path(), other.path(), force));
  EXPECT_TRUE(fs::exists(other / "letter.txt"));
  const auto itself = quantize_checkpoint(hf.path(), hf.path(), force);
  ASSERT_FALSE(itself);
  EXPECT_NE(itself.error().message.find("cannot be quantised onto itself"), std::string::npos);
  const ScratchDir twice;
  const auto quantised = quantize_checkpoint(other.path(), twice.path(), {});
  ASSERT_FALSE(quantised);
  EXPECT_NE(quantised.error().message.find("is already quantised"), std::string::npos);
  EXPECT_TRUE(twice.files().empty());
  EXPECT_FALSE(quantize_checkpoint(hf.path(), hf / "config.json" / "sub", {}));
}

TEST(Quantize, AFullDiskLeavesNothingThatLooksComplete) {
  const ScratchDir hf, out;
  synth(hf.path(), true, false);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit tight = old;
  tight.rlim_cur = 100'000;  // no file may grow beyond this
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const auto failed = quantize_checkpoint(hf.path(), out.path(), {});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Error::Code::kIo);
  EXPECT_EQ(failed.error().message, "cannot write " + (out / "model.safetensors").string() + ": File too large");
  EXPECT_EQ(out.files(), std::vector<std::string>{".calla-unfinished"});
  EXPECT_TRUE(quantize_checkpoint(hf.path(), out.path(), {})) << "and goes on once there is room";
}

TEST(Quantize, RefusesWeightsThatAreNotFinite) {
  const ScratchDir hf, out;
  synth(hf.path(), true, false);
  std::string file = content(hf / "model.safetensors");
  file[file.size() - 1] = '\x7f';
  file[file.size() - 2] = '\x80';  // the last value of lm_head becomes infinite
  ASSERT_TRUE(write_file(hf / "model.safetensors", file));
  const auto result = quantize_checkpoint(hf.path(), out.path(), {});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message,
            hf.path().string() + ": language_model.lm_head, matrix 0, row 319: a weight is not a finite number");
  EXPECT_FALSE(fs::exists(out / "config.json"));
}

TEST(Synth, TheSameSeedGivesTheSameBytes) {
  const ScratchDir a, b, c;
  synth(a.path(), false, true, 7);
  synth(b.path(), false, true, 7);
  synth(c.path(), false, true, 8);
  ASSERT_EQ(a.files(), b.files());
  for (const std::string& name : a.files()) EXPECT_EQ(content(a / name), content(b / name)) << name;
  EXPECT_NE(content(a / "model.safetensors"), content(c / "model.safetensors"));
  const auto tokenizer = Tokenizer::load(a.path());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  std::vector<int32_t> ids;
  tokenizer->encode("\x01 hé", ids);
  std::string back;
  for (const int32_t id : ids) back += tokenizer->bytes(id);
  EXPECT_EQ(back, "\x01 hé");
  EXPECT_EQ(tokenizer->control_id("<|im_end|>"), 258);
}

TEST(Synth, WeightsHaveTheSpreadOfAFreshModel) {
  const ScratchDir dir;
  synth(dir.path(), false, false);
  const auto checkpoint = Checkpoint::open(dir.path());
  const auto w = bind_weights(*checkpoint);
  ASSERT_TRUE(w);
  for (const Linear& m : {w->tokens, w->layers[0].gdn.qkv, w->layers[3].attn.q, w->head}) {
    double sum = 0, squares = 0;
    std::vector<double> row(m.in);
    for (int r = 0; r < m.out; ++r) {
      dequantize_row<double>(m, r, row);
      for (const double v : row) {
        sum += v;
        squares += v * v;
      }
    }
    const double n = double(m.out) * m.in, deviation = std::sqrt(squares / n);
    EXPECT_NEAR(sum / n, 0, 5 * deviation / std::sqrt(n));
    EXPECT_GT(deviation * std::sqrt(double(m.in)), 0.7);
    EXPECT_LT(deviation * std::sqrt(double(m.in)), 1.5);
  }
}

// The published checkpoint's shape, with headers of full size and data that take no disk.
TEST(FullShape, BindsAndCounts) {
  const ScratchDir dir;
  const Weights w = skeleton(*synth_shape("35b"), false);
  const auto parts = list_parts(w);
  ASSERT_TRUE(write_file(dir / "config.json", *quantized_config(make_config(w.config, 248044), "", parts)));
  std::vector<TensorSpec> specs;
  for (const Part& part : parts) {
    for (TensorSpec& spec : part.tensors()) specs.push_back(std::move(spec));
  }
  const std::string header = safetensors_header(specs, {{"format", "mlx"}});
  uint64_t bytes = header.size();
  for (const TensorSpec& spec : specs) bytes += spec.bytes();
  std::ofstream(dir / "model.safetensors", std::ios::binary) << header;
  fs::resize_file(dir / "model.safetensors", bytes);

  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 1757u);
  EXPECT_EQ(checkpoint->total_bytes(), 19'508'787'456u);
  const auto weights = bind_weights(*checkpoint);
  ASSERT_TRUE(weights) << weights.error().message;
  EXPECT_EQ(weights->bytes_per_token(), 1'669'228'800u);
  // By hand: attention 8192 + 2·512 rows and 2048·4096; delta net 8192 + 4096 + 64 rows and 2048·4096; router 256 + 1
  // rows; nine experts of 3·512 rows.
  constexpr uint64_t kAttention = (8192 + 2 * 512 + 4096) * 2048, kDelta = (8192 + 4096 + 64 + 4096) * 2048;
  constexpr uint64_t kExperts = (256 + 1 + 9 * 3 * 512) * 2048;
  EXPECT_EQ(weights->macs_per_token(), 10 * kAttention + 30 * kDelta + 40 * kExperts);
  EXPECT_EQ(weights->config.attention_layers(), 10);
}

}  // namespace
}  // namespace calla
