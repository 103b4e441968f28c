#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "convert/checkpoint_writer.h"
#include "formats/config.h"

namespace calla {

// Shapes of checkpoints with random weights: "35b" is the real one, "tiny" is for tests, the others lie between.
Result<ModelConfig> synth_shape(std::string_view name);
std::vector<std::string> synth_shapes();

struct SynthOptions {
  ModelConfig shape;
  uint64_t seed = 0;
  bool hf = false;   // Hugging Face bf16 in one file, for small shapes; otherwise MLX 4-bit
  bool mtp = false;  // with an MTP head
  bool force = false;
  int threads = 0;
  std::filesystem::path tokenizer;      // folder whose tokenizer files are copied; empty: one token per byte
  std::filesystem::path chat_template;  // copied where it exists and the tokenizer folder brought none
};

// Writes a checkpoint whose weights are random: zero mean, standard deviation 1/√in, norms near one, decays like a
// trained model's, so that activations stay of order one and logits differ. The same options give the same bytes.
Result<WriteSummary> write_synth(const std::filesystem::path& out, const SynthOptions& options);

}  // namespace calla
