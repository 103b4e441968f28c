#include "convert/synth_hf.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "base/progress.h"
#include "convert/synth_random.h"
#include "formats/safetensors_writer.h"

namespace calla {
namespace {

using Kind = Part::Kind;

// A part under its Hugging Face name and shape; gate and up of the experts are one tensor, which the gate stands for.
TensorSpec hf_spec(const Part& part) {
  std::string name = part.name;
  const auto replace = [&](std::string_view from, std::string_view to) {
    if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  };
  replace("language_model.model.", "model.language_model.");
  replace("language_model.lm_head", "lm_head");
  TensorSpec spec{name, Dtype::kBf16, part.shape};
  if (part.kind == Kind::kConv) spec.shape = {part.shape[0], part.shape[2], part.shape[1]};
  if (part.kind != Kind::kMatrix) return spec;
  if (part.shape.size() == 2) {
    spec.name += ".weight";
    return spec;
  }
  replace("switch_mlp.down_proj", "experts.down_proj");
  if (name.ends_with("gate_proj")) {
    replace("switch_mlp.gate_proj", "experts.gate_up_proj");
    spec.shape[1] *= 2;
  }
  spec.name = name;
  return spec;
}

// The same vector as in MLX's form: there zero-centred norms are stored with the +1, here without.
std::vector<bf16> vector_rows(const Part& part, uint64_t seed) {
  std::vector<bf16> stored;
  for (const float v : random_vector(part, seed)) stored.push_back(to_bf16(part.kind == Kind::kNorm ? v - 1 : v));
  return stored;
}

std::vector<bf16> matrix_row(const TensorSpec& spec, uint64_t row, uint64_t seed) {
  Random random = row_stream(seed, spec.name, row);
  const float deviation = 1 / std::sqrt(static_cast<float>(spec.shape.back()));
  std::vector<bf16> values(spec.shape.back());
  for (bf16& v : values) v = to_bf16(deviation * bell(random.next()));
  return values;
}

}  // namespace

Result<uint64_t> write_hf_tensors(const std::filesystem::path& path, const std::vector<Part>& parts, uint64_t seed) {
  std::vector<TensorSpec> specs;
  std::vector<const Part*> sources;
  uint64_t bytes = 0;
  for (const Part& part : parts) {
    if (part.name.ends_with("switch_mlp.up_proj")) continue;
    specs.push_back(hf_spec(part));
    sources.push_back(&part);
    bytes += specs.back().bytes();
  }
  constexpr uint64_t kMost = 8'000'000'000;
  if (bytes > kMost) {
    return invalid(fmt::format("the Hugging Face form is for small shapes: this one takes {}, more than {}",
                               format_bytes(bytes), format_bytes(kMost)));
  }
  CALLA_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::create(path, specs, {{"format", "pt"}}));
  Progress progress("writing", bytes);
  for (size_t t = 0; t < specs.size(); ++t) {
    if (sources[t]->kind != Kind::kMatrix) {
      CALLA_TRY(writer.write(t, 0, std::as_bytes(std::span<const bf16>(vector_rows(*sources[t], seed)))));
    } else {
      const uint64_t row_bytes = sizeof(bf16) * specs[t].shape.back();
      for (uint64_t r = 0; r < specs[t].bytes() / row_bytes; ++r) {
        CALLA_TRY(writer.write(t, r * row_bytes, std::as_bytes(std::span<const bf16>(matrix_row(specs[t], r, seed)))));
      }
    }
    progress.advance(specs[t].bytes());
  }
  CALLA_TRY(writer.commit());
  return bytes;
}

}  // namespace calla
