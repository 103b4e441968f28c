#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace calla {

// The folder of a model: `spec` is a folder, or a Hugging Face repository id ("mlx-community/Qwen3.6-35B-A3B-4bit")
// whose files are in the local cache of Hugging Face's tools ($HF_HUB_CACHE, $HF_HOME/hub, else
// ~/.cache/huggingface/hub). Nothing is downloaded. Errors say what is missing and what to do.
Result<std::filesystem::path> find_model(std::string_view spec);

}  // namespace calla
