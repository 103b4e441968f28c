#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "app/command.h"
#include "app/console.h"
#include "app/model_options.h"
#include "backend/cpu/select.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/progress.h"
#include "bench/ceilings.h"
#include "engine/runner.h"
#include "formats/checkpoint.h"
#include "model/weights.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

// Prints lines as they are found out, and remembers whether any of them is a fault.
class Report {
 public:
  void section(std::string_view name) { print(fmt::format("{}\n", name)); }
  void line(std::string_view what, std::string_view text) { print(fmt::format("  {:<12}{}\n", what, text)); }
  void fault(std::string_view what, std::string_view text) {
    line(what, fmt::format("FAULT: {}", text));
    ++faults_;
  }
  int faults() const { return faults_; }
  const Result<void>& written() const { return written_; }

 private:
  void print(const std::string& text) {
    if (written_) written_ = write_stdout(text);
  }
  int faults_ = 0;
  Result<void> written_;
};

std::string features(const CpuInfo& cpu) {
  std::string out;
  const auto add = [&](bool has, const char* name) {
    if (has) out += (out.empty() ? "" : ", ") + std::string(name);
  };
  add(cpu.avx2, "AVX2");
  add(cpu.avx512, "AVX-512 VNNI");
  add(cpu.amx, "AMX int8");
  add(cpu.neon_dotprod, "NEON dotprod");
  add(cpu.neon_i8mm, "NEON i8mm");
  return out.empty() ? "none that Calla looks for" : out;
}

struct Ceilings {
  double read = 0;  // bytes a second
};

Ceilings examine_machine(const ModelOptions& o, Report& report) {
  const CpuInfo& cpu = cpu_info();
  report.section("machine");
  report.line("processor", fmt::format("{}, {} of its threads usable", cpu.name, cpu.cores));
  report.line("features", features(cpu));
  std::string tables;
  for (const KernelTable* table : available_tables()) tables += (tables.empty() ? "" : ", ") + std::string(table->isa);
  report.line("kernels", fmt::format("{} (the first is used)", tables));
  for (const Gpu& gpu : gpus()) {
    report.line(
        fmt::format("cuda:{}", gpu.index),
        fmt::format("{}, capability {}.{}, {} multiprocessors, {} of {} free", gpu.name, gpu.capability / 10,
                    gpu.capability % 10, gpu.multiprocessors, format_bytes(gpu.free), format_bytes(gpu.memory)));
  }
  report.line("memory",
              fmt::format("{}, {} of it available", format_bytes(total_memory()), format_bytes(available_memory())));

  report.section("ceilings");
  Ceilings out;
  {
    Pool one(1), all(o.runner.threads);
    const double single = measure_read_bandwidth(one);
    out.read = all.threads() > 1 ? std::max(single, measure_read_bandwidth(all)) : single;
    report.line("reading", fmt::format("{:.1f} GB/s with one thread, {:.1f} GB/s with {}: bounds the speed of answers",
                                       single / 1e9, out.read / 1e9, all.threads()));
    const auto rate = measure_int8_rate(all, o.runner.cpu_isa);
    if (rate) {
      report.line("int8", fmt::format("{:.0f} GMAC/s with {} threads: bounds the speed of reading prompts", *rate / 1e9,
                                      all.threads()));
    } else {
      report.fault("int8", rate.error().message);
    }
  }
  if (const auto kernels = test_kernels()) {
    report.line("self-test", *kernels);
  } else {
    report.fault("self-test", kernels.error().message);
  }
  return out;
}

void examine_weights(const fs::path& folder, const Ceilings& ceilings, Report& report) {
  const auto checkpoint = Checkpoint::open(folder);
  if (!checkpoint) return report.fault("checkpoint", checkpoint.error().message);
  const auto weights = bind_weights(*checkpoint);
  if (!weights) return report.fault("checkpoint", weights.error().message);
  const ModelConfig& c = weights->config;
  report.line("checkpoint",
              fmt::format("{} tensors in {} files, {}: all found, none unknown", checkpoint->tensors().size(),
                          checkpoint->files().size(), format_bytes(checkpoint->total_bytes())));
  report.line("shape", fmt::format("{} layers ({} attend), width {}, {} experts of which {} work, vocabulary {}",
                                   c.layers, c.attention_layers(), c.hidden, c.experts, c.top_k, c.vocab));
  const auto bytes = static_cast<double>(weights->bytes_per_token());
  report.line("answers", fmt::format("{:.1f} MB of weights for each token: at most {:.0f} tok/s at {:.1f} GB/s{}",
                                     bytes / 1e6, ceilings.read / bytes, ceilings.read / 1e9,
                                     bytes < 64e6 ? " (more while they fit in the cache)" : ""));
}

void examine_text(const fs::path& folder, Report& report) {
  const uint64_t before = process_memory().anonymous;
  if (const auto tokenizer = Tokenizer::load(folder)) {
    const uint64_t after = process_memory().anonymous;
    report.line("tokenizer", fmt::format("{} tokens, {} of memory", tokenizer->size(),
                                         format_bytes(after > before ? after - before : 0)));
  } else {
    report.fault("tokenizer", tokenizer.error().message);
  }
  if (const auto chat = ChatTemplate::load(folder)) {
    report.line("template", chat->name());
  } else {
    report.fault("template", chat.error().message);
  }
}

void examine_plan(const fs::path& folder, const RunnerOptions& options, Report& report) {
  const auto plan = plan_memory(folder, options);
  if (!plan) return report.fault("memory", plan.error().message);
  const bool copied = plan->on_gpu || options.load.load == Load::kResident;
  report.line("plan",
              fmt::format("{} weights ({}), {} keys and values for {} tokens, {} state, {} scratch; a chat keeps "
                          "up to {} more to go back",
                          format_bytes(plan->weights),
                          plan->on_gpu ? "on the GPU"
                          : copied     ? "copied"
                                       : "mapped",
                          format_bytes(plan->kv), options.context, format_bytes(plan->recurrent),
                          format_bytes(plan->scratch), format_bytes(plan->marks)));
  const uint64_t available = plan->available;
  const uint64_t all = plan->anonymous() + plan->weights;
  if (copied && all > available) {
    report.fault("memory", fmt::format("{} are needed and {} available; use {}, or free memory", format_bytes(all),
                                       format_bytes(available), plan->on_gpu ? "--device cpu" : "--load auto"));
  } else if (plan->anonymous() > available) {
    report.fault("memory", fmt::format("{} are needed besides the weights and {} available; choose a smaller --context",
                                       format_bytes(plan->anonymous()), format_bytes(available)));
  } else {
    report.line("memory", fmt::format("{} besides the weights: {}", format_bytes(plan->anonymous()),
                                      all <= available ? "fits"
                                                       : "fits, but the weights will be read from disk again and "
                                                         "again, which is slow"));
  }
}

Result<void> examine(const ModelOptions& o) {
  Report report;
  const Ceilings ceilings = examine_machine(o, report);
  report.section("model");
  if (const auto folder = model_folder(o.model)) {
    report.line("folder", folder->string());
    examine_weights(*folder, ceilings, report);
    examine_text(*folder, report);
    RunnerOptions options = runner_options(o);
    if (options.context == 0) {
      const auto checkpoint = Checkpoint::open(*folder);
      options.context = checkpoint ? std::min(Model::kDefaultContext, checkpoint->config().max_positions) : 1;
    }
    examine_plan(*folder, options, report);
  } else {
    report.fault("folder", folder.error().message);
  }
  report.section("verdict");
  if (report.faults() == 0) report.line("ready", "calla run and calla chat will work");
  CALLA_TRY(report.written());
  if (report.faults() == 0) return {};
  return fail(Error::Code::kUnsupported, fmt::format("{} of these checks failed", report.faults()));
}

}  // namespace

void add_doctor(CLI::App& app, Run& run) {
  const auto o = std::make_shared<ModelOptions>();
  add_model_options(app, *o);
  app.footer(R"(Examples:
  calla doctor
  calla doctor --model mlx-community/Qwen3.6-35B-A3B-4bit --context 65536

Says what this machine has, measures what it can do at most, tests the kernels against the plain formula, and checks that the
model's files are whole and will fit. Takes a few seconds; exits with 1 if something is wrong.)");
  app.callback([o, &run] { run = [o] { return examine(*o); }; });
}

}  // namespace calla
