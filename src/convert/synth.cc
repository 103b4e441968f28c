#include "convert/synth.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "convert/byte_tokenizer.h"
#include "convert/config_json.h"
#include "convert/synth_hf.h"
#include "convert/synth_random.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

struct Shape {
  std::string_view name;
  int hidden, layers, vocab, heads, kv_heads, k_heads, v_heads, experts, top_k, expert_width, shared_width;
};
constexpr std::array kShapes{
    Shape{"tiny", 128, 4, 320, 2, 1, 1, 2, 8, 2, 64, 64},
    Shape{"small", 512, 8, 4096, 4, 2, 4, 8, 32, 4, 128, 128},
    Shape{"1b", 1024, 16, 65536, 8, 2, 8, 16, 64, 8, 256, 256},
    Shape{"35b", 2048, 40, 248320, 16, 2, 16, 32, 256, 8, 512, 512},
};

// Uniform codes around the middle: w = s·(q − 7.5), or 127.5 with 8 bits. The scale has so few bits that the bias,
// −7.5·s, is exact in bf16 and the mean is truly zero.
void random_rows(const Part& part, int expert, int first, int count, uint64_t seed, PackedRows out) {
  const bool wide = part.bits == 8;
  const double middle = wide ? 127.5 : 7.5;
  const double spread = wide ? 73.9 : 4.61;          // standard deviation of a uniform code
  const double mean_mantissa = wide ? 1.0 : 1.4375;  // of the scales below
  const int exponent =
      static_cast<int>(std::lround(std::log2(1 / (spread * mean_mantissa * std::sqrt(double(part.in()))))));
  const size_t words = part.row_bytes() / sizeof(uint32_t);
  for (int r = 0; r < count; ++r) {
    Random random = row_stream(seed, part.name, static_cast<uint64_t>(expert) * part.out() + first + r);
    for (size_t i = 0; i < words; i += 2) {
      const uint64_t bits = random.next();
      std::memcpy(out.words + r * words + i, &bits, sizeof bits);
    }
    for (size_t g = r * part.groups(); g < (r + 1) * part.groups(); ++g) {
      const uint64_t bits = random.next();
      const double mantissa = wide ? 1.0 : 1.0 + static_cast<double>(bits & 7) / 8;
      const double scale = std::ldexp((bits & 8) != 0 ? -mantissa : mantissa, exponent);
      out.scales[g] = to_bf16(static_cast<float>(scale));
      out.biases[g] = to_bf16(static_cast<float>(-middle * scale));
    }
  }
}

std::string generation_config(int32_t first_control) {
  const nlohmann::json json = {{"bos_token_id", first_control},
                               {"do_sample", true},
                               {"eos_token_id", {first_control + 2, first_control}},
                               {"pad_token_id", first_control},
                               {"temperature", 1.0},
                               {"top_k", 20},
                               {"top_p", 0.95}};
  return json.dump(4) + "\n";
}

using Files = std::vector<std::pair<std::string, std::string>>;

// What a checkpoint needs besides weights and config: name and content.
Result<Files> companions(const SynthOptions& options, int32_t first_control) {
  Files files;
  const auto copy = [&](const fs::path& path) -> Result<void> {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return {};
    CALLA_ASSIGN(std::string content, read_file(path));
    files.emplace_back(path.filename().string(), std::move(content));
    return {};
  };
  if (options.tokenizer.empty()) {
    files.emplace_back("tokenizer.json", byte_tokenizer_json(first_control));
    if (!options.chat_template.empty()) CALLA_TRY(copy(options.chat_template));
  } else {
    CALLA_ASSIGN(std::string json, read_file(options.tokenizer / "tokenizer.json"));
    files.emplace_back("tokenizer.json", std::move(json));
    for (const char* name : {"tokenizer_config.json", "chat_template.jinja"}) CALLA_TRY(copy(options.tokenizer / name));
  }
  files.emplace_back("generation_config.json", generation_config(first_control));
  return files;
}

Result<WriteSummary> write_hf(const fs::path& out, const std::vector<Part>& parts, const std::string& config,
                              const Files& files, const SynthOptions& options) {
  std::error_code error;
  fs::create_directories(out, error);
  if (error)
    return fail(Error::Code::kIo, fmt::format("cannot create the folder {}: {}", out.string(), error.message()));
  if (!options.force && !fs::is_empty(out, error)) {
    return invalid(
        fmt::format("{} is not empty; choose another folder, or give --force to write into it", out.string()));
  }
  WriteSummary summary{.shards = 1};
  CALLA_ASSIGN(summary.bytes, write_hf_tensors(out / "model.safetensors", parts, options.seed));
  for (const auto& [name, content] : files) CALLA_TRY(write_file(out / name, content));
  CALLA_TRY(write_file(out / "config.json", config));
  return summary;
}

}  // namespace

std::vector<std::string> synth_shapes() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

Result<ModelConfig> synth_shape(std::string_view name) {
  for (const Shape& s : kShapes) {
    if (s.name != name) continue;
    ModelConfig c;
    c.hidden = s.hidden;
    c.layers = s.layers;
    for (int l = 0; l < s.layers; ++l) c.attends.push_back(l % 4 == 3);
    c.vocab = s.vocab;
    c.heads = s.heads;
    c.kv_heads = s.kv_heads;
    c.k_heads = s.k_heads;
    c.v_heads = s.v_heads;
    c.experts = s.experts;
    c.top_k = s.top_k;
    c.expert_width = s.expert_width;
    c.shared_width = s.shared_width;
    c.max_positions = 262144;
    return c;
  }
  return invalid(fmt::format("there is no shape \"{}\", only {}", name, fmt::join(synth_shapes(), ", ")));
}

Result<WriteSummary> write_synth(const fs::path& out, const SynthOptions& options) {
  ModelConfig shape = options.shape;
  shape.mtp_layers = options.mtp ? 1 : 0;
  const Weights weights = skeleton(shape, options.mtp);
  const std::vector<Part> body = list_parts(weights);
  const std::vector<Part> mtp = weights.mtp ? list_mtp_parts(*weights.mtp) : std::vector<Part>{};
  const int32_t first_control = first_control_id(shape.vocab);
  const std::string config = make_config(shape, first_control);
  CALLA_ASSIGN(const Files files, companions(options, first_control));
  if (options.hf) {
    std::vector<Part> all = body;
    all.insert(all.end(), mtp.begin(), mtp.end());
    return write_hf(out, all, config, files, options);
  }
  std::string generation;
  for (const auto& [name, content] : files) {
    if (name == "generation_config.json") generation = content;
  }
  CALLA_ASSIGN(const std::string quantized, quantized_config(config, generation, body));
  PartSource source;
  source.rows = [&](const Part& part, int expert, int first, int count, PackedRows rows) -> Result<void> {
    random_rows(part, expert, first, count, options.seed, rows);
    return {};
  };
  source.values = [&](const Part& part) { return random_vector(part, options.seed); };
  return write_checkpoint(out, body, mtp, quantized, files, source,
                          {.force = options.force, .threads = options.threads});
}

}  // namespace calla
