#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/command.h"
#include "app/console.h"
#include "app/input.h"
#include "app/model_options.h"
#include "base/progress.h"
#include "engine/runner.h"
#include "formats/safetensors_writer.h"
#include "text/chat_json.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRowsAtOnce = 64;  // of logits in memory: 64 MB with the full vocabulary

struct Options {
  ModelOptions model;
  std::string ids, out;
};

Result<std::vector<int32_t>> read_ids(const std::string& path) {
  CALLA_ASSIGN(const std::string text, read_input(path));
  const auto json = parse_json(text);
  if (!json) return invalid(fmt::format("{}: {}", path, json.error().message));
  if (!json->is_array() || json->empty()) return invalid(fmt::format("{} must be a JSON list of token ids", path));
  std::vector<int32_t> ids;
  for (const auto& id : *json) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      return invalid(fmt::format("{}: element {} is not a token id", path, ids.size()));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Result<void> eval_logits(const Options& o) {
  CALLA_ASSIGN(const std::vector<int32_t> ids, read_ids(o.ids));
  CALLA_ASSIGN(const fs::path folder, model_folder(o.model.model));
  RunnerOptions options = runner_options(o.model);
  if (options.context == 0) options.context = static_cast<int>(ids.size());
  CALLA_ASSIGN(const auto runner, open_runner(folder, options));
  CALLA_ASSIGN(const auto sequence, runner->start());
  const size_t vocab = runner->config().vocab;
  // Row by row: whole texts have more logits than fit in memory.
  const TensorSpec logits_spec{"logits", Dtype::kF32, {static_cast<int64_t>(ids.size()), static_cast<int64_t>(vocab)}};
  CALLA_ASSIGN(SafetensorsWriter out, SafetensorsWriter::create(o.out, {logits_spec}));
  Progress progress("scoring", ids.size(), Progress::Unit::kItems);
  std::vector<float> logits;
  for (size_t at = 0; at < ids.size(); at += kRowsAtOnce) {
    const Step step{sequence.get(), std::span(ids).subspan(at, std::min(kRowsAtOnce, ids.size() - at)),
                    Step::Logits::kAll};
    CALLA_TRY(runner->forward({&step, 1}, logits));
    CALLA_TRY(out.write(0, at * vocab * sizeof(float), std::as_bytes(std::span(logits))));
    progress.advance(step.tokens.size());
  }
  CALLA_TRY(out.commit());
  fmt::print(stderr, "{}: logits of {} tokens, {} each\n", o.out, ids.size(), vocab);
  return {};
}

void add_logits(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  app.add_option("--ids", o->ids, "A JSON list of token ids; - is standard input")->required()->type_name("FILE");
  app.add_option("--out", o->out, "The file to write")->required()->type_name("FILE");
  add_model_options(app, o->model);
  app.footer(R"(Examples:
  calla eval logits --ids ids.json --out logits.safetensors
  echo "Once upon a time" | calla tokenize --model DIR | calla eval logits --model DIR --backend reference --ids - --out ref.safetensors

Writes one tensor, "logits", f32 [tokens, vocabulary]: row i follows tokens 0 to i.)");
  app.callback([o, &run] { run = [o] { return eval_logits(*o); }; });
}

}  // namespace

void add_eval(CLI::App& app, Run& run) {
  app.require_subcommand(1);
  add_logits(*app.add_subcommand("logits", "Write the logits of given tokens to a safetensors file"), run);
}

}  // namespace calla
