#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "app/command.h"
#include "app/console.h"
#include "app/model_options.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "bench/plot.h"
#include "bench/session.h"
#include "formats/checkpoint.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

constexpr int kFirstContext = 256, kLastContext = 131072;
constexpr double kMinutes = 10;

struct Options {
  ModelOptions model;
  std::vector<int> contexts;
  int depth = 0, prompt = 0, steps = 64, rounds = 2;
  double tolerance = 3, minutes = -1;
  std::string compare, json, svg;
  bool profile = false;

  bool whole_matrix() const { return contexts.empty() && depth == 0; }
};

// The rows that were asked for; of the whole matrix those that this model and this machine have room for. Says on
// standard error which are left out.
Result<std::vector<BenchRow>> choose_rows(const Options& o, const fs::path& folder) {
  std::vector<BenchRow> rows;
  for (const int context : o.contexts) rows.push_back({0, context, o.steps});
  if (o.depth > 0) rows.push_back({o.depth, o.prompt, o.steps});
  for (const BenchRow& row : rows) {
    if (o.model.runner.context == 0 || row.positions() <= o.model.runner.context) continue;
    return invalid(fmt::format("{} and {} steps need {} positions, more than --context {}", row.name(), row.steps,
                               row.positions(), o.model.runner.context));
  }
  if (!o.whole_matrix()) return rows;
  CALLA_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(folder));
  RunnerOptions runner = runner_options(o.model);
  const int most = o.model.runner.context > 0 ? o.model.runner.context : checkpoint.config().max_positions;
  for (int context = kFirstContext; context <= kLastContext; context *= 2) {
    const BenchRow row{0, context, o.steps};
    runner.context = row.positions();
    std::string reason;
    if (row.positions() > most) {
      reason = fmt::format("the context ends at {} tokens", format_count(most));
    } else {
      CALLA_ASSIGN(const MemoryPlan plan, plan_memory(folder, runner));
      if (plan.needed() > plan.available) {
        reason = fmt::format("{} of memory are needed{}", format_bytes(plan.needed()),
                             plan.on_gpu ? "" : " besides the weights");
      }
    }
    if (!reason.empty()) {
      fmt::print(stderr, "left out: contexts from {} on: {}\n", format_count(context), reason);
      break;
    }
    rows.push_back(row);
  }
  if (rows.empty()) return invalid(fmt::format("not even a context of {} has room", format_count(kFirstContext)));
  return rows;
}

// A file that cannot be written should be known before minutes of measuring.
Result<void> check_writable(const fs::path& path) {
  if (path.empty()) return {};
  std::error_code ignored;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int error = ::access(folder.c_str(), W_OK | X_OK) != 0 ? errno : fs::is_directory(path, ignored) ? EISDIR : 0;
  if (error == 0) return {};
  return fail(Error::Code::kIo,
              fmt::format("cannot write {}: {}", path.string(), std::generic_category().message(error)));
}

Result<void> bench(const Options& o) {
  CALLA_TRY(check_writable(o.json));
  CALLA_TRY(check_writable(o.svg));
  BenchOptions options;
  CALLA_ASSIGN(options.model, model_folder(o.model.model));
  std::error_code error;
  if (const fs::path whole = fs::canonical(options.model, error); !error) options.model = whole;  // named in the report
  options.runner = runner_options(o.model);
  CALLA_ASSIGN(options.rows, choose_rows(o, options.model));
  options.rounds = o.rounds;
  options.tolerance = o.tolerance / 100;
  options.row_seconds = 60 * (o.minutes >= 0 ? o.minutes : o.whole_matrix() ? kMinutes : 0);
  options.peer = o.compare;
  options.profile = o.profile;
  CALLA_ASSIGN(const std::string program, read_file("/proc/self/exe"));
  options.build = {CALLA_VERSION, sha256_hex(program)};

  const InterruptFlag interrupt;
  CALLA_ASSIGN(const BenchReport report, run_bench(options, interrupt.flag()));
  CALLA_TRY(write_stdout(report_text(report)));
  if (!o.json.empty()) CALLA_TRY(write_file(o.json, report_json(report)));
  if (!o.svg.empty()) CALLA_TRY(write_file(o.svg, report_svg(report)));
  if (report.refused() == 0) return {};
  return invalid(fmt::format("{} of {} rows refused: their rounds differ, by more than {:g} % or in their tokens",
                             report.refused(), report.results.size(), o.tolerance));
}

void check_usage(const Options& o) {
  if ((o.depth > 0) != (o.prompt > 0)) throw CLI::ValidationError("--depth and --prompt belong together");
  if (!o.svg.empty() && o.contexts.empty() && o.depth > 0) {
    throw CLI::ValidationError("--svg draws contexts: give --contexts too");
  }
  if (o.profile && o.model.device == "reference") {
    throw CLI::ValidationError("--profile needs the cpu backend");
  }
}

constexpr const char* kExamples = R"(Examples:
  calla bench --model mlx-community/Qwen3.6-35B-A3B-4bit --json result.json --svg result.svg
  calla bench --model DIR --contexts 512,2048 --depth 8192 --prompt 512 --rounds 5
  calla bench --model DIR --contexts 512 --profile            # time, bytes and multiplications of each verb
  calla bench --model DIR --contexts 512,2048 \
    --compare 'llama-bench -m x.gguf -p 512,2048 -n 64 -d 0,512,2048 -o json'
  calla bench --model DIR --contexts 512 --compare 'mlx_lm.benchmark --model ID -p 512 -g 64'

For each context: a prompt of so many tokens from nothing, then 64 greedy steps. Token i of the prompt is ((i·2654435761) mod
2^32) mod the vocabulary, so every machine reads the same. A row is run once unmeasured, then once in every round, from a fresh
state; figures are medians. A row is REFUSED, and the exit code 1, when its rounds differ by more than the tolerance or
give different tokens (the last column is the start of their SHA-256).

"of ceiling" compares with what this machine showed in the same minutes: decode with the bytes that a token must read (weights,
recurrent state, keys and values) at the read bandwidth, prefill with the products of the prompt and the weights at the rate
of int8 products (on a GPU: of f16 ones). Where a model is so small that the caches hold it, more than 100 % is possible.

A peer's command runs after each of our rounds. Its figures are found by their shape: llama-bench's -p N at -d D, its -n at -d N.)";

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  app.add_option("--contexts", o->contexts,
                 fmt::format("Lengths to measure (default: {} to {} by doubling, as far as memory, model and --minutes "
                             "allow)",
                             kFirstContext, kLastContext))
      ->type_name("N,N,…")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--depth", o->depth, "Also read --prompt tokens, and decode, after this many tokens")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--prompt", o->prompt, "The tokens to read at --depth")->type_name("N")->check(CLI::Range(1, 1 << 20));
  app.add_option("--steps", o->steps, "Tokens to decode (default: 64)")->type_name("N")->check(CLI::Range(1, 1 << 16));
  app.add_option("--rounds", o->rounds, "Measured runs of each row (default: 2)")
      ->type_name("N")
      ->check(CLI::Range(2, 1000));
  app.add_option("--tolerance", o->tolerance,
                 "Refuse a row whose rounds differ by more, (max - min) / median (default: 3)")
      ->type_name("PERCENT")
      ->check(CLI::Range(0.0, 1000.0));
  app.add_option("--minutes", o->minutes,
                 fmt::format("End the list before a row that would take longer; 0: no limit (default: {:g}, without "
                             "--contexts and --depth)",
                             kMinutes))
      ->type_name("N")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--compare", o->compare,
                 "A shell command to run in turn with our rounds: llama-bench -o json, or mlx_lm.benchmark")
      ->type_name("CMD");
  app.add_flag("--profile", o->profile, "Also time every verb of the model's page");
  app.add_option("--json", o->json, "Write everything, all rounds included, to this file")->type_name("FILE");
  app.add_option("--svg", o->svg, "Draw decode and prefill against context into this file")->type_name("FILE");
  add_model_options(app, o->model);
  app.footer(kExamples);
  app.callback([o, &run] {
    check_usage(*o);
    run = [o] { return bench(*o); };
  });
}

}  // namespace calla
