#include "convert/quantize.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/file.h"
#include "convert/config_json.h"
#include "formats/checkpoint.h"
#include "quant/affine.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

// Files that go along with the weights unchanged, where they exist.
constexpr std::array kCopied = {"tokenizer.json",
                                "tokenizer_config.json",
                                "chat_template.jinja",
                                "chat_template.json",
                                "special_tokens_map.json",
                                "added_tokens.json",
                                "vocab.json",
                                "merges.txt",
                                "generation_config.json",
                                "preprocessor_config.json",
                                "video_preprocessor_config.json",
                                "LICENSE"};

std::span<const std::byte> rows_in_file(const Part& part, int expert, int first, int count) {
  const Linear rows = part.matrices[expert].rows(first, count);
  return {rows.weight, rows.row_bytes() * count};
}

Result<void> quantize_rows(const Part& part, int expert, int first, int count, bool search, PackedRows out) {
  const Linear& w = part.matrices[expert];
  const size_t words = static_cast<size_t>(kGroup) * part.bits / 32;
  size_t group = 0;
  for (int r = first; r < first + count; ++r) {
    for (int c = 0; c < w.in; c += kGroup, ++group) {
      std::array<float, kGroup> values;
      uint32_t special = 0;  // an exponent of all ones: infinity or NaN
      for (int i = 0; i < kGroup; ++i) {
        values[i] = load_bf16(w.weight, static_cast<size_t>(r) * w.in + c + i);
        special |= (std::bit_cast<uint32_t>(values[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
      }
      if (special != 0) {
        return invalid(fmt::format("{}, matrix {}, row {}: a weight is not a finite number", part.name, expert, r));
      }
      const AffineGroup q = search ? search_group(values, part.bits) : quantize_group(values, part.bits);
      pack_codes(q.codes, part.bits, out.words + group * words);
      out.scales[group] = q.scale;
      out.biases[group] = q.bias;
    }
  }
  return {};
}

// A_log and dt_bias keep the dtype that they are stored in; mlx-lm does not touch them either.
void keep_dtypes(std::vector<Part>& parts, const Checkpoint& from) {
  for (Part& part : parts) {
    if (part.kind != Part::Kind::kALog && part.kind != Part::Kind::kDtBias) continue;
    const std::string_view tail = std::string_view(part.name).substr(part.name.find("layers."));
    for (const char* body : {"model.language_model.", "language_model.model.", "model."}) {
      const auto it = from.tensors().find(body + std::string(tail));
      if (it != from.tensors().end()) part.dtype = it->second.dtype;
    }
  }
}

Result<void> check_is_plain(const std::vector<Part>& parts, const fs::path& from) {
  for (const Part& part : parts) {
    for (const Linear& w : part.matrices) {
      if (w.format != Linear::Format::kBf16) {
        return invalid(fmt::format("{}: {} is already quantised", from.string(), part.name));
      }
    }
  }
  return {};
}

}  // namespace

Result<QuantizeSummary> quantize_checkpoint(const fs::path& from, const fs::path& to, const QuantizeOptions& options) {
  CALLA_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(from));
  CALLA_ASSIGN(const Weights weights, bind_weights(checkpoint));
  std::vector<Part> body = list_parts(weights);
  keep_dtypes(body, checkpoint);
  const std::vector<Part> mtp = weights.mtp ? list_mtp_parts(*weights.mtp) : std::vector<Part>{};
  CALLA_TRY(check_is_plain(body, from));
  CALLA_TRY(check_is_plain(mtp, from));
  std::error_code ignored;
  if (fs::equivalent(from, to, ignored))
    return invalid(fmt::format("{} cannot be quantised onto itself", from.string()));

  QuantizeSummary summary;
  summary.source_bytes = checkpoint.total_bytes();
  summary.mtp = !mtp.empty();
  std::vector<std::pair<std::string, std::string>> extra;
  std::string generation;
  for (const char* name : kCopied) {
    if (!fs::exists(from / name, ignored)) continue;
    CALLA_ASSIGN(std::string content, read_file(from / name));
    if (name == std::string_view("generation_config.json")) generation = content;
    if (name == std::string_view("tokenizer.json")) summary.tokenizer = true;
    extra.emplace_back(name, std::move(content));
  }
  CALLA_ASSIGN(const std::string old_config, read_file(from / "config.json"));
  CALLA_ASSIGN(const std::string config, quantized_config(old_config, generation, body));

  PartSource source;
  source.rows = [&](const Part& part, int expert, int first, int count, PackedRows out) -> Result<void> {
    auto result = quantize_rows(part, expert, first, count, options.search, out);
    if (!result) return fail(result.error().code, fmt::format("{}: {}", from.string(), result.error().message));
    return result;
  };
  source.values = [](const Part& part) { return *part.values; };
  source.advise = [](const Part& part, int expert, int first, int count, bool soon) {
    const auto bytes = rows_in_file(part, expert, first, count);
    soon ? will_need(bytes) : done_with(bytes);
  };
  const WriteOptions write{options.force, options.shard_bytes, options.threads, "quantising"};
  CALLA_ASSIGN(summary.written, write_checkpoint(to, body, mtp, config, extra, source, write));
  return summary;
}

}  // namespace calla
