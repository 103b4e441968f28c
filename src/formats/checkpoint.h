#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/config.h"
#include "formats/safetensors.h"

namespace calla {

// Tensor → shard, as model.safetensors.index.json tells it. Shard names with a folder in them are refused.
using IndexMap = std::map<std::string, std::string, std::less<>>;
Result<IndexMap> parse_index(std::string_view json);

// A checkpoint folder: config.json, and safetensors as one file, as shards named by model.safetensors.index.json, plus
// mtp.safetensors where present. Owns the mappings; move-only; const methods are thread-safe.
class Checkpoint {
 public:
  // Opens and checks everything except what a tensor means: every shard of the index exists, holds what the index says,
  // no tensor twice.
  static Result<Checkpoint> open(const std::filesystem::path& dir);
  // A checkpoint over tensors that the caller keeps alive, without a folder: for tests and fuzzers.
  static Checkpoint assemble(ModelConfig config, TensorMap tensors);

  const std::filesystem::path& dir() const { return dir_; }
  const ModelConfig& config() const { return config_; }
  const TensorMap& tensors() const { return tensors_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  uint64_t total_bytes() const;  // of all tensors
  // The path of the file that holds a tensor, for messages.
  std::string file_of(const TensorView& tensor) const;

 private:
  Result<void> add(SafetensorsFile file);
  Result<void> open_shards();
  std::filesystem::path dir_;
  ModelConfig config_;
  std::vector<SafetensorsFile> files_;
  TensorMap tensors_;
};

}  // namespace calla
