#include "app/sampling_options.h"

#include <CLI/CLI.hpp>

namespace calla {
namespace {

template <class T>
void set(const std::optional<T>& from, T& to) {
  if (from) to = *from;
}

}  // namespace

void SamplingOptions::apply(GenerateOptions& o) const {
  set(temperature, o.sampling.temperature);
  set(top_k, o.sampling.top_k);
  set(top_p, o.sampling.top_p);
  set(min_p, o.sampling.min_p);
  set(presence_penalty, o.sampling.presence_penalty);
  set(frequency_penalty, o.sampling.frequency_penalty);
  set(repetition_penalty, o.sampling.repetition_penalty);
  set(max_tokens, o.max_tokens);
  if (seed) o.sampling.seed = seed;
  if (!stop.empty()) o.stop = stop;
}

void add_sampling_options(CLI::App& app, SamplingOptions& o) {
  constexpr const char* kGroup = "Sampling (default: the model's generation_config.json)";
  const auto add = [&](const char* flag, auto& value, const char* help, const char* type) {
    app.add_option(flag, value, help)->type_name(type)->group(kGroup);
  };
  add("--temperature", o.temperature, "0 always takes the likeliest token; higher is more varied", "T");
  add("--top-k", o.top_k, "Choose among the K likeliest tokens; 0: no limit", "K");
  add("--top-p", o.top_p, "Choose among the likeliest tokens that together reach probability P", "P");
  add("--min-p", o.min_p, "Leave out tokens less likely than P times the likeliest", "P");
  add("--presence-penalty", o.presence_penalty, "Lower the logit of every token that the answer has already", "X");
  add("--frequency-penalty", o.frequency_penalty, "The same, once for each time it was used", "X");
  add("--repetition-penalty", o.repetition_penalty, "Divide the logits of tokens of prompt and answer; 1 is off", "X");
  add("--seed", o.seed, "The same seed gives the same answer", "N");
  add("--max-tokens", o.max_tokens, "End the answer after N tokens; 0: when the context is full", "N");
  app.add_option("--stop", o.stop, "End the answer before this text; may be given several times")
      ->type_name("TEXT")
      ->group(kGroup)
      ->allow_extra_args(false);
}

void validate(const SamplingOptions& options) {
  GenerateOptions all;
  options.apply(all);
  if (const auto result = check_options(all); !result) throw CLI::ValidationError(result.error().message);
}

}  // namespace calla
