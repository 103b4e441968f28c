#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/model.h"

namespace CLI {
class App;
}

namespace calla {

// The flags of every command that runs a model.
struct ModelOptions {
  std::string model;  // --model as given; "" is Bud
  std::string device = "auto";
  RunnerOptions runner;

  bool is_bud() const { return model.empty(); }
};

// Adds --model, --context, --threads, --load, --mlock, --cpu-isa and --device.
void add_model_options(CLI::App& app, ModelOptions& options);

// Adds --thinking and --no-thinking. Unset: the template's default, except that Bud is too small to think.
void add_thinking_flags(CLI::App& app, std::optional<bool>& thinking);

// The folder that a --model flag means; "" is Bud, beside the installed program (../share/calla/models/bud), else in
// the sources it was built from.
Result<std::filesystem::path> model_folder(const std::string& model);
// The same for commands that read tokenizer files only: any folder will do.
Result<std::filesystem::path> tokenizer_folder(const std::string& model);

// The runner's options, with the backend that --device names.
RunnerOptions runner_options(const ModelOptions& options);

Result<std::unique_ptr<Model>> open_model(const ModelOptions& options);

}  // namespace calla
