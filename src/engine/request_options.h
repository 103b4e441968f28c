#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "engine/generate.h"

namespace calla {

// How this model is meant to be sampled: generation_config.json.
GenerateOptions default_options(const Model& model);

// Reads the fields of an OpenAI-style request that shape the choice of tokens, over what `options` holds:
//
//   temperature, top_p, top_k (-1 is 0: no limit), min_p, presence_penalty, frequency_penalty, repetition_penalty,
//   seed, logit_bias, max_tokens or max_completion_tokens, stop (a string or several), logprobs (true, or how many),
//   top_logprobs, ignore_eos
//
// null is as absent; other fields are ignored. Errors name the field; ranges are check_options' to say.
Result<void> read_options(const nlohmann::ordered_json& request, GenerateOptions& options);

}  // namespace calla
