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

// A checkpoint folder: config.json, and safetensors as one file, as shards named by model.safetensors.index.json, plus
// mtp.safetensors where present. Owns the mappings; move-only; const methods are thread-safe.
class Checkpoint {
 public:
  // Opens and checks everything except what a tensor means: every shard of the index exists, holds what the index says,
  // no tensor twice.
  static Result<Checkpoint> open(const std::filesystem::path& dir);

  const std::filesystem::path& dir() const { return dir_; }
  const ModelConfig& config() const { return config_; }
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  uint64_t total_bytes() const;

 private:
  std::filesystem::path dir_;
  ModelConfig config_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

}  // namespace calla
