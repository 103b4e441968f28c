#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "convert/parts.h"

namespace calla {

// config.json of a quantised checkpoint: the source's, with the quantization block of MLX (twice, as mlx-lm writes it)
// and the stop ids of generation_config.json (may be empty text) at the top level. Keys are sorted.
Result<std::string> quantized_config(std::string_view config, std::string_view generation_config,
                                     const std::vector<Part>& body);

// config.json for a shape, as Hugging Face writes it for this architecture.
std::string make_config(const ModelConfig& c, int32_t first_control);

}  // namespace calla
