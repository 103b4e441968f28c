// The three JSON files of a checkpoint on arbitrary text. What is accepted must keep the promises that the loader
// builds on.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "formats/checkpoint.h"
#include "formats/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto config = calla::parse_config(text)) {
    const calla::ModelConfig& c = *config;
    const bool good = c.hidden % 64 == 0 && c.hidden > 0 && c.expert_width % 64 == 0 && c.shared_width % 64 == 0 &&
                      c.attends.size() == static_cast<size_t>(c.layers) && c.heads % c.kv_heads == 0 &&
                      c.v_heads % c.k_heads == 0 && c.top_k <= c.experts && c.rope_theta >= 1 && c.norm_eps > 0;
    if (!good) std::abort();
  } else if (config.error().message.find('\n') != std::string::npos) {
    std::abort();
  }
  if (const auto generation = calla::parse_generation_config(text)) {
    if (!(generation->top_p >= 0 && generation->top_p <= 1 && generation->temperature >= 0)) std::abort();
  }
  if (const auto index = calla::parse_index(text)) {
    for (const auto& [tensor, shard] : *index) {
      if (shard.find('/') != std::string::npos || shard.starts_with(".")) std::abort();
    }
  }
  return 0;
}
