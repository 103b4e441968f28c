#include "app/model_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <regex>
#include <string>

#include "engine/locate.h"

namespace calla {

namespace fs = std::filesystem;

void add_model_options(CLI::App& app, ModelOptions& o) {
  constexpr const char* kGroup = "Model";
  app.add_option(
         "--model", o.model,
         "A model's folder, or the id of one in the Hugging Face cache; without it, Bud, the small built-in model")
      ->type_name("DIR|ID")
      ->group(kGroup);
  o.runner.context = 0;
  app.add_option("--context", o.runner.context,
                 fmt::format("Tokens that a conversation can hold (default: the model's limit, at most {})",
                             Model::kDefaultContext))
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20))
      ->group(kGroup);
  app.add_option("--threads", o.runner.threads, "Processor threads (default: all that this process may use)")
      ->type_name("N")
      ->check(CLI::Range(1, 64))
      ->group(kGroup);
  static const std::map<std::string, Load> kLoads = {
      {"auto", Load::kAuto}, {"mmap", Load::kMap}, {"resident", Load::kResident}};
  app.add_option("--load", o.runner.load.load,
                 "auto: weights are used where the page cache has them, and read ahead at the start if they fit in "
                 "memory; mmap: the same, but read only when they are needed; resident: copied into memory that the "
                 "system cannot drop")
      ->type_name("HOW")
      ->transform(CLI::CheckedTransformer(kLoads).description(""))
      ->group(kGroup);
  app.add_flag("--mlock", o.runner.load.lock, "Lock the weights in memory")->group(kGroup);
  app.add_option("--cpu-isa", o.runner.cpu_isa,
                 "Force one set of kernels: scalar, avx2, avx512, amx, neon or neon-i8mm (default: the best one)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"scalar", "avx2", "avx512", "amx", "neon", "neon-i8mm"}))
      ->group(kGroup);
  app.add_option("--device", o.device,
                 "auto: a GPU if there is one with room for the model, else the processor; cpu; cuda or cuda:N; or "
                 "reference: 64-bit floating point, exact and very slow")
      ->type_name("NAME")
      ->check(CLI::Validator(
          [](const std::string& name) {
            static const std::regex kNames("auto|cpu|reference|cuda(:[0-9]{1,2})?");
            return std::regex_match(name, kNames) ? std::string() : "expected auto, cpu, cuda, cuda:N or reference";
          },
          ""))
      ->group(kGroup);
}

void add_thinking_flags(CLI::App& app, std::optional<bool>& thinking) {
  const auto on = app.add_flag_callback(
      "--thinking", [&] { thinking = true; },
      "Let the model think first (default: as its template says; Bud does not)");
  app.add_flag_callback(
         "--no-thinking", [&] { thinking = false; }, "Ask for the answer at once")
      ->excludes(on);
}

Result<fs::path> model_folder(const std::string& model) {
  if (!model.empty()) return find_model(model);
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path places[] = {program.parent_path().parent_path() / "share/calla/models/bud",
                             fs::path(CALLA_SOURCE_DIR) / "models/bud"};
  for (const fs::path& place : places) {
    if (fs::exists(place / "config.json", error)) return place;
  }
  return fail(Error::Code::kNotFound,
              fmt::format("Bud, the built-in model, is neither in {} nor in {}: name a model with --model",
                          places[0].string(), places[1].string()));
}

Result<fs::path> tokenizer_folder(const std::string& model) {
  std::error_code error;
  return fs::is_directory(model, error) ? Result<fs::path>(model) : model_folder(model);
}

RunnerOptions runner_options(const ModelOptions& options) {
  RunnerOptions runner = options.runner;
  using Backend = RunnerOptions::Backend;
  const std::string& name = options.device;
  runner.backend = name == "auto"        ? Backend::kAuto
                   : name == "cpu"       ? Backend::kCpu
                   : name == "reference" ? Backend::kReference
                                         : Backend::kCuda;
  if (const size_t colon = name.find(':'); colon != std::string::npos) runner.gpu = std::stoi(name.substr(colon + 1));
  return runner;
}

Result<std::unique_ptr<Model>> open_model(const ModelOptions& options) {
  CALLA_ASSIGN(const fs::path folder, model_folder(options.model));
  return Model::open(folder, runner_options(options));
}

}  // namespace calla
