#include "engine/request_options.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

// The field, or null where it is absent or null.
const Json* find(const Json& request, const char* field) {
  const auto it = request.find(field);
  return it == request.end() || it->is_null() ? nullptr : &*it;
}

Result<void> read(const Json& request, const char* field, float& out) {
  const Json* value = find(request, field);
  if (value == nullptr) return {};
  if (!value->is_number()) return invalid(fmt::format("{} must be a number", field));
  out = value->get<float>();
  return {};
}

Result<void> read(const Json& request, const char* field, int& out) {
  const Json* value = find(request, field);
  if (value == nullptr) return {};
  const bool fits = value->is_number_unsigned() ? value->get<uint64_t>() <= std::numeric_limits<int>::max()
                                                : value->is_number_integer() && value->get<int64_t>() >= -1;
  if (!fits)
    return invalid(fmt::format("{} must be a whole number of at most {}", field, std::numeric_limits<int>::max()));
  out = value->get<int>();
  return {};
}

Result<void> read(const Json& request, const char* field, bool& out) {
  const Json* value = find(request, field);
  if (value == nullptr) return {};
  if (!value->is_boolean()) return invalid(fmt::format("{} must be true or false", field));
  out = value->get<bool>();
  return {};
}

Result<void> read_stop(const Json& request, std::vector<std::string>& out) {
  const Json* value = find(request, "stop");
  if (value == nullptr) return {};
  out.clear();
  const auto add = [&](const Json& s) {
    if (!s.is_string()) return false;
    out.push_back(s.get<std::string>());
    return true;
  };
  if (add(*value)) return {};
  if (!value->is_array()) return invalid("stop must be a string or a list of strings");
  for (size_t i = 0; i < value->size(); ++i) {
    if (!add((*value)[i])) return invalid(fmt::format("stop[{}] must be a string", i));
  }
  return {};
}

Result<void> read_bias(const Json& request, std::vector<std::pair<int32_t, float>>& out) {
  const Json* value = find(request, "logit_bias");
  if (value == nullptr) return {};
  if (!value->is_object()) return invalid("logit_bias must be an object of token ids and numbers");
  out.clear();
  for (const auto& [key, bias] : value->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || !bias.is_number()) {
      return invalid(fmt::format("logit_bias: \"{}\" must be a token id with a number", key));
    }
    out.emplace_back(id, bias.get<float>());
  }
  return {};
}

// Chat's logprobs is a flag beside top_logprobs, completions' is the number itself.
Result<void> read_logprobs(const Json& request, int& out) {
  const Json* value = find(request, "logprobs");
  if (value != nullptr && value->is_number()) return read(request, "logprobs", out);
  int top = 0;
  CALLA_TRY(read(request, "top_logprobs", top));
  bool logprobs = top > 0;
  CALLA_TRY(read(request, "logprobs", logprobs));
  if (logprobs) out = top;
  return {};
}

}  // namespace

GenerateOptions default_options(const Model& model) {
  const GenerationConfig& c = model.generation_config();
  GenerateOptions o;
  o.sampling.temperature = c.do_sample ? c.temperature : 0;
  o.sampling.top_k = c.top_k;
  o.sampling.top_p = c.top_p;
  o.sampling.min_p = c.min_p;
  o.sampling.presence_penalty = c.presence_penalty;
  o.sampling.repetition_penalty = c.repetition_penalty;
  return o;
}

Result<void> read_options(const Json& request, GenerateOptions& options) {
  if (!request.is_object()) return invalid("the request must be a JSON object");
  SamplingParams& s = options.sampling;
  CALLA_TRY(read(request, "temperature", s.temperature));
  CALLA_TRY(read(request, "top_p", s.top_p));
  CALLA_TRY(read(request, "top_k", s.top_k));
  if (s.top_k == -1) s.top_k = 0;
  CALLA_TRY(read(request, "min_p", s.min_p));
  CALLA_TRY(read(request, "presence_penalty", s.presence_penalty));
  CALLA_TRY(read(request, "frequency_penalty", s.frequency_penalty));
  CALLA_TRY(read(request, "repetition_penalty", s.repetition_penalty));
  CALLA_TRY(read_bias(request, s.bias));
  if (const Json* seed = find(request, "seed")) {
    if (!seed->is_number_integer()) return invalid("seed must be a whole number");
    s.seed = seed->is_number_unsigned() ? seed->get<uint64_t>() : static_cast<uint64_t>(seed->get<int64_t>());
  }
  CALLA_TRY(read(request, "max_tokens", options.max_tokens));
  CALLA_TRY(read(request, "max_completion_tokens", options.max_tokens));
  CALLA_TRY(read_stop(request, options.stop));
  CALLA_TRY(read(request, "ignore_eos", options.ignore_eos));
  return read_logprobs(request, s.logprobs);
}

}  // namespace calla
