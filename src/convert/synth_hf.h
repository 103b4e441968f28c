#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "convert/parts.h"

namespace calla {

// Writes random weights for these parts in Hugging Face's form: bf16, gate and up of the experts fused, norms around
// zero. One file, at most 8 GB. Returns the bytes of the tensors.
Result<uint64_t> write_hf_tensors(const std::filesystem::path& path, const std::vector<Part>& parts, uint64_t seed);

}  // namespace calla
