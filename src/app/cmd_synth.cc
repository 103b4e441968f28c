#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "app/command.h"
#include "app/model_options.h"
#include "base/progress.h"
#include "convert/synth.h"

namespace calla {
namespace {

struct Options {
  std::filesystem::path out;
  std::string shape = "35b";
  std::string form = "mlx";
  SynthOptions synth;
};

Result<void> synth(Options options) {
  CALLA_ASSIGN(const auto bud, model_folder(""));
  CALLA_ASSIGN(options.synth.shape, synth_shape(options.shape));
  options.synth.hf = options.form == "hf";
  options.synth.chat_template = bud / "chat_template.jinja";
  const auto start = Clock::now();
  CALLA_ASSIGN(const WriteSummary done, write_synth(options.out, options.synth));
  const double seconds = seconds_since(start);
  fmt::print("wrote {} of random weights to {} in {} ({:.0f} MB/s)\n", format_bytes(done.bytes), options.out.string(),
             format_duration(seconds), static_cast<double>(done.bytes - done.kept_bytes) / 1e6 / seconds);
  return {};
}

}  // namespace

void add_synth(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  app.add_option("OUT", options->out, "The folder to write")->required();
  app.add_option("--shape", options->shape, fmt::format("One of {}", fmt::join(synth_shapes(), ", ")))
      ->capture_default_str()
      ->check(CLI::IsMember(synth_shapes()))
      ->type_name("NAME");
  app.add_option("--form", options->form, "mlx: 4 bits, as it runs; hf: bf16, to try quantize on (small shapes)")
      ->capture_default_str()
      ->check(CLI::IsMember({"mlx", "hf"}))
      ->type_name("FORM");
  app.add_option("--seed", options->synth.seed, "The same seed gives the same bytes")
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--tokenizer", options->synth.tokenizer,
                 "Copy the tokenizer from this folder; otherwise one token per byte")
      ->type_name("DIR");
  app.add_option("--threads", options->synth.threads, "0: all processors")->check(CLI::Range(0, 64))->type_name("N");
  app.add_flag("--mtp", options->synth.mtp, "With a head for speculative decoding");
  app.add_flag("--force", options->synth.force, "Write into a folder that holds other files");
  app.callback([options, &run] { run = [options] { return synth(*options); }; });
}

}  // namespace calla
