#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "app/command.h"
#include "base/progress.h"
#include "convert/quantize.h"

namespace calla {
namespace {

struct Options {
  std::filesystem::path from, to;
  QuantizeOptions quantize;
};

Result<void> quantize(const Options& options) {
  const auto start = Clock::now();
  CALLA_ASSIGN(const QuantizeSummary done, quantize_checkpoint(options.from, options.to, options.quantize));
  const double seconds = seconds_since(start);
  const WriteSummary& written = done.written;
  fmt::print("wrote {} in {} file{} to {}, from {} of bf16, in {} ({:.0f} MB/s read)\n", format_bytes(written.bytes),
             written.shards, written.shards == 1 ? "" : "s", options.to.string(), format_bytes(done.source_bytes),
             format_duration(seconds), static_cast<double>(done.source_bytes) / 1e6 / seconds);
  if (written.kept_bytes > 0) fmt::print("{} of it was there from an earlier run\n", format_bytes(written.kept_bytes));
  if (done.mtp) fmt::print("the head for speculative decoding is in mtp.safetensors\n");
  if (!done.tokenizer)
    fmt::print("note: {} has no tokenizer.json to copy; the model needs one to run\n", options.from.string());
  return {};
}

}  // namespace

void add_quantize(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  app.add_option("HF_DIR", options->from, "The bf16 checkpoint: config.json and safetensors")->required();
  app.add_option("OUT_DIR", options->to, "The folder to write; an interrupted run is taken up again")->required();
  app.add_flag(
      "--search", options->quantize.search,
      "Search each group's scale and bias for less error; slower, same size (default: MLX's rule, to the bit)");
  app.add_option("--threads", options->quantize.threads, "0: all processors")->check(CLI::Range(0, 64))->type_name("N");
  app.add_flag("--force", options->quantize.force, "Write into a folder that holds other files");
  app.callback([options, &run] { run = [options] { return quantize(*options); }; });
}

}  // namespace calla
