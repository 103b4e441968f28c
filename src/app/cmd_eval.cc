#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "app/command.h"
#include "app/console.h"
#include "app/eval_report.h"
#include "app/input.h"
#include "app/model_options.h"
#include "base/clock.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "engine/runner.h"
#include "engine/state_file.h"
#include "eval/score_file.h"
#include "eval/scoring.h"
#include "eval/summary.h"
#include "formats/checkpoint.h"
#include "formats/safetensors_writer.h"
#include "text/chat_json.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Options {
  ModelOptions model;
  std::string file, ids;  // the text
  std::string reference;  // saved logits
  std::string against, resume, out;
  std::string against_device = "reference";
  int window = 2048, stride = 0;
  int chunk = 64;
  bool json = false;
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

// The text as tokens. Markers such as <|im_end|> in a file are text.
Result<std::vector<int32_t>> read_text(const Options& o, const fs::path& folder) {
  if (!o.ids.empty()) return read_ids(o.ids);
  CALLA_ASSIGN(const std::string text, read_input(o.file));
  CALLA_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(folder));
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  if (ids.empty()) return invalid(fmt::format("{} is empty", o.file));
  return ids;
}

Result<std::unique_ptr<Runner>> open_eval_runner(const Options& o, const fs::path& folder, const std::string& device,
                                                 size_t context, size_t chunk) {
  ModelOptions model = o.model;
  model.device = device;
  RunnerOptions options = runner_options(model);
  options.context = static_cast<int>(context);
  options.chunk = options.logit_rows = static_cast<int>(chunk);
  return open_runner(folder, options);
}

// Rows of logits in memory: 64 MB with the full vocabulary, more only where passes are longer.
size_t rows_at_once(const Options& o) {
  return static_cast<size_t>(std::max(o.chunk, 64));
}

// --- logits ---

Result<void> eval_logits(const Options& o) {
  CALLA_ASSIGN(const fs::path folder, model_folder(o.model.model));
  CALLA_ASSIGN(const std::vector<int32_t> ids, read_text(o, folder));
  CALLA_ASSIGN(auto runner, open_eval_runner(o, folder, o.model.device, ids.size(), o.chunk));
  RunnerSource source(std::move(runner));
  const auto vocab = static_cast<size_t>(source.vocab());
  // Row by row: whole texts have more logits than fit in memory.
  const auto count = static_cast<int64_t>(ids.size());
  CALLA_ASSIGN(SafetensorsWriter out,
               SafetensorsWriter::create(o.out, {{"logits", Dtype::kF32, {count, static_cast<int64_t>(vocab)}},
                                                 {"ids", Dtype::kI32, {count}}}));
  CALLA_TRY(out.write(1, 0, std::as_bytes(std::span(ids))));
  Progress progress("scoring", ids.size(), Progress::Unit::kItems);
  CALLA_TRY(source.restart(0));
  for (size_t at = 0; at < ids.size(); at += rows_at_once(o)) {
    const auto tokens = std::span(ids).subspan(at, std::min(rows_at_once(o), ids.size() - at));
    CALLA_ASSIGN(const auto logits, source.feed(tokens, true));
    CALLA_TRY(out.write(0, at * vocab * sizeof(float), std::as_bytes(logits)));
    progress.advance(tokens.size());
  }
  CALLA_TRY(out.commit());
  fmt::print(stderr, "{}: logits of {} tokens, {} each\n", o.out, ids.size(), vocab);
  return {};
}

// --- perplexity and compare ---

// Scores everything that `scores` lacks, with a progress line; keeps o.resume up to date, also when Ctrl-C ends it.
Result<void> score(const Options& o, const Scoring& scoring, const RunIdentity& run, std::vector<RowScore>& scores) {
  using namespace std::chrono_literals;
  const size_t before = scores.size(), total = scoring.ids.size() - 1;
  if (before > 0) fmt::print(stderr, "{}: {} of {} positions are there from an earlier run\n", o.resume, before, total);
  const auto save = [&] { return o.resume.empty() ? Result<void>() : save_scores(o.resume, run, scores); };
  Progress progress("scoring", total - before, Progress::Unit::kItems);
  const InterruptFlag interrupt;
  Clock::time_point next_save = Clock::now() + 1s;
  const auto pause = [&]() -> Result<void> {
    progress.update(scores.size() - std::min(before, scores.size()));
    if (interrupt.flag()) {
      CALLA_TRY(save());
      return fail(Error::Code::kCancelled, "cancelled");
    }
    if (const auto now = Clock::now(); now >= next_save) {
      CALLA_TRY(save());
      // Long texts have large files: at most a twentieth of the time goes into them.
      next_save = Clock::now() + std::max<Clock::duration>(1s, 20 * (Clock::now() - now));
    }
    return {};
  };
  CALLA_TRY(score_text(scoring, scores, pause));
  return save();
}

// Bytes of the token that each row predicts; none for a checkpoint without a tokenizer.
std::vector<double> next_bytes(const fs::path& folder, std::span<const int32_t> ids) {
  const auto tokenizer = Tokenizer::load(folder);
  std::vector<double> bytes;
  if (!tokenizer) return bytes;
  for (const int32_t id : ids.subspan(1)) bytes.push_back(static_cast<double>(tokenizer->bytes(id).size()));
  return bytes;
}

// compare: against saved logits, another model, or another backend; else perplexity alone.
Result<void> eval_text(const Options& o, bool compare) {
  CALLA_ASSIGN(const fs::path folder, model_folder(o.model.model));
  std::optional<SavedLogits> saved;
  std::vector<int32_t> ids;
  if (o.reference.empty()) {
    CALLA_ASSIGN(ids, read_text(o, folder));
  } else {
    CALLA_ASSIGN(saved, SavedLogits::open(o.reference));
    ids = saved->ids();
  }
  if (ids.size() < 2) return invalid("the text has 1 token, and at least 2 are needed: the first is not predicted");

  CALLA_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(folder));
  const size_t longest = saved ? ids.size() : std::min<size_t>(o.window, checkpoint.config().max_positions);
  const size_t window = std::min(longest, ids.size());
  const size_t stride = std::min<size_t>(window, compare ? window : o.stride > 0 ? o.stride : (window + 1) / 2);
  RunIdentity run = {{"model", fingerprint(checkpoint)},
                     {"text", sha256_hex({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof ids[0]})},
                     {"options", fmt::format("window {}, stride {}, chunk {}, device {} {}", window, stride, o.chunk,
                                             o.model.device, o.model.runner.cpu_isa)}};

  CALLA_ASSIGN(auto runner, open_eval_runner(o, folder, o.model.device, window, o.chunk));
  RunnerSource model(std::move(runner));
  Scoring scoring{
      .ids = ids, .windows = windows(ids.size(), window, stride), .rows_at_once = rows_at_once(o), .model = &model};
  std::optional<RunnerSource> second;
  if (saved) {
    scoring.reference = &*saved;
  } else if (compare) {
    const std::string& against = o.against.empty() ? o.model.model : o.against;
    CALLA_ASSIGN(const fs::path other_folder, model_folder(against));
    CALLA_ASSIGN(const Checkpoint other, Checkpoint::open(other_folder));
    run["reference"] = fmt::format("{} {}", fingerprint(other), o.against_device);
    CALLA_ASSIGN(auto reference, open_eval_runner(o, other_folder, o.against_device, window, rows_at_once(o)));
    scoring.reference = &second.emplace(std::move(reference));
  }

  std::vector<RowScore> scores;
  if (!o.resume.empty()) {
    CALLA_ASSIGN(scores, load_scores(o.resume, run, ids.size() - 1));
  }
  CALLA_TRY(score(o, scoring, run, scores));
  const Summary summary = summarize(scores, next_bytes(folder, ids), compare);
  if (!o.json) return write_stdout(to_table(summary));
  Json json = {{"model", folder.string()},
               {"device", o.model.device},
               {"window", window},
               {"stride", stride},
               {"chunk", o.chunk}};
  json.update(to_json(summary));
  return write_stdout(json.dump(2) + "\n");
}

// --- flags ---

void add_text_options(CLI::App& app, Options& o) {
  app.add_option("FILE", o.file, "A text; - is standard input")->type_name("");
  app.add_option("--ids", o.ids, "A JSON list of token ids instead of a text; - is standard input")->type_name("FILE");
  app.add_option("--chunk", o.chunk, "Rows of one pass: 1 computes as decoding does, 512 as prompts are read (64)")
      ->type_name("N")
      ->check(CLI::Range(1, 512));
}

// What only the command line can have wrong.
void check_text(const Options& o, const char* or_saved = "") {
  if (!o.file.empty() + !o.ids.empty() + !o.reference.empty() != 1) {
    throw CLI::ValidationError(std::string("give one text: a FILE, or --ids") + or_saved);
  }
}

void add_model(CLI::App& app, ModelOptions& model) {
  add_model_options(app, model);
  app.remove_option(app.get_option("--context"));  // the window is what the context must hold
}

void add_scoring_options(CLI::App& app, Options& o) {
  app.add_option("--window", o.window, "Most tokens that the model sees at once (2048, or what the model can)")
      ->type_name("N")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--resume", o.resume, "Keep the scores in this file, and take up what it holds")->type_name("FILE");
  app.add_flag("--json", o.json, "Print one JSON object");
}

void add_logits(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  add_text_options(app, *o);
  app.add_option("--out", o->out, "The file to write")->required()->type_name("FILE");
  add_model(app, o->model);
  app.footer(R"(Examples:
  calla eval logits --ids ids.json --out logits.safetensors
  calla eval logits --model DIR --device reference text.txt --out ref.safetensors

Writes "logits", f32 [tokens, vocabulary], row i after tokens 0 to i, and "ids", i32 [tokens].)");
  app.callback([o, &run] {
    check_text(*o);
    run = [o] { return eval_logits(*o); };
  });
}

void add_perplexity(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  add_text_options(app, *o);
  add_scoring_options(app, *o);
  app.add_option("--stride", o->stride,
                 "Positions that each window scores; the rest of it is what goes before (half a window)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  add_model(app, o->model);
  app.footer(R"(Examples:
  calla eval perplexity --model DIR book.txt
  calla eval perplexity --model DIR --window 4096 --stride 1024 --resume book.scores --json book.txt

Every token but the first is predicted once; nothing is put before the text, as in training. NLL is the mean of -log p in
nats, perplexity e to that, and bits per byte compares models with different tokenizers. A run with --resume can be
stopped at any time, and goes on where it was when the same command is given again.)");
  app.callback([o, &run] {
    check_text(*o);
    if (o->stride > o->window) throw CLI::ValidationError("--stride is larger than --window: it would leave gaps");
    run = [o] { return eval_text(*o, false); };
  });
}

void add_compare(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  add_text_options(app, *o);
  app.add_option("--reference", o->reference,
                 "What calla eval logits wrote, instead of a text: its ids, and logits to compare with")
      ->type_name("FILE");
  app.add_option("--against", o->against, "Compare with this model (default: the same one)")->type_name("DIR|ID");
  app.add_option("--against-device", o->against_device, "What computes it: reference (default) or cpu")
      ->type_name("NAME")
      ->check(CLI::IsMember({"cpu", "reference"}));
  add_scoring_options(app, *o);
  add_model(app, o->model);
  app.get_option("--window")->excludes(app.get_option("--reference"));
  app.get_option("--resume")->excludes(app.get_option("--reference"));
  app.get_option("--against")->excludes(app.get_option("--reference"));
  app.get_option("--against-device")->excludes(app.get_option("--reference"));
  app.footer(R"(Examples:
  calla eval compare --model DIR text.txt                                  # our kernels with 64-bit floating point
  calla eval compare --model 4BIT --device reference --against BF16 text.txt   # what the quantisation costs
  calla eval compare --model DIR --reference ref.safetensors               # with logits that were saved

Prints the KL divergence from the reference's probabilities to ours, how often both find the same token likeliest, how
many of the reference's eight likeliest are among our eight, and both perplexities. Windows do not overlap.)");
  app.callback([o, &run] {
    check_text(*o, ", or --reference");
    run = [o] { return eval_text(*o, true); };
  });
}

}  // namespace

void add_eval(CLI::App& app, Run& run) {
  app.require_subcommand(1);
  add_perplexity(*app.add_subcommand("perplexity", "How well the model predicts a text"), run);
  add_compare(*app.add_subcommand("compare", "How far two models, or two backends, are apart"), run);
  add_logits(*app.add_subcommand("logits", "Write the logits of a text to a safetensors file"), run);
}

}  // namespace calla
