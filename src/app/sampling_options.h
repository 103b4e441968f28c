#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate.h"

namespace CLI {
class App;
}

namespace calla {

// The flags that shape the choice of tokens. What is not given keeps the value of the request or of the model's own
// settings.
struct SamplingOptions {
  std::optional<float> temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  std::optional<int> top_k, max_tokens;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;

  void apply(GenerateOptions& options) const;
};

void add_sampling_options(CLI::App& app, SamplingOptions& options);

// Throws CLI::ValidationError for a value that is out of range. For an app's callback.
void validate(const SamplingOptions& options);

}  // namespace calla
