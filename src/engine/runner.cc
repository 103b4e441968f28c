#include "engine/runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/cpu/ops_cpu.h"
#include "backend/cpu/select.h"
#include "backend/reference/ops_reference.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/progress.h"
#include "engine/cuda_runner.h"
#include "engine/host_backend.h"
#include "engine/pass_runner.h"
#include "ops/profiled_ops.h"

namespace calla {
namespace {

Result<std::unique_ptr<RunnerModel>> open_model(const std::filesystem::path& dir) {
  CALLA_ASSIGN(Checkpoint checkpoint, Checkpoint::open(dir));
  auto model = std::make_unique<RunnerModel>(RunnerModel{std::move(checkpoint), {}, nullptr});
  CALLA_ASSIGN(model->weights, bind_weights(model->checkpoint));
  return model;
}

Result<void> check_options(const RunnerOptions& o, const ModelConfig& config) {
  if (o.context < 1 || o.context > config.max_positions) {
    return invalid(fmt::format("a context of {} is not possible: this model has positions 1 to {}", o.context,
                               config.max_positions));
  }
  if (o.sequences < 1 || o.sequences > 4096)
    return invalid(fmt::format("{} sequences: expected 1 to 4096", o.sequences));
  if (o.chunk < 0 || o.chunk > 8192)
    return invalid(fmt::format("a chunk of {} rows: expected 1 to 8192, or 0 for what suits", o.chunk));
  if (o.logit_rows < 1) return invalid(fmt::format("{} rows of logits: expected 1 or more", o.logit_rows));
  if (o.threads < 0 || o.threads > 64)
    return invalid(fmt::format("{} threads: expected 1 to 64, or 0 for all", o.threads));
  return {};
}

// What 0 stands for. The more rows, the more tokens an expert has each time its weights are read and unpacked; that
// pays where the threads are too many for memory to feed, and costs scratch (docs/performance.md).
RunnerOptions complete(RunnerOptions o) {
  if (o.backend == RunnerOptions::Backend::kCuda) return complete_for_gpu(o);
  constexpr int kManyThreads = 8;
  if (o.threads == 0) o.threads = cpu_info().cores;
  if (o.chunk == 0) o.chunk = o.threads < kManyThreads ? 512 : 2048;
  o.chunk = std::min(o.chunk, o.context);
  return o;
}

// The options complete, and for one device: what kAuto becomes. A GPU that is there and not used is worth a line.
RunnerOptions choose_device(const RunnerModel& model, const RunnerOptions& o) {
  if (o.backend != RunnerOptions::Backend::kAuto) return complete(o);
  for (const Gpu& gpu : gpus()) {
    RunnerOptions on_gpu = o;
    on_gpu.backend = RunnerOptions::Backend::kCuda;
    on_gpu.gpu = gpu.index;
    on_gpu = complete(on_gpu);
    const auto fits = check_gpu(model, on_gpu);
    if (fits) return on_gpu;
    if (o.load.report) fmt::print(stderr, "calla: {} is not used: {}\n", gpu.name, fits.error().message);
  }
  RunnerOptions on_cpu = o;
  on_cpu.backend = RunnerOptions::Backend::kCpu;
  return complete(on_cpu);
}

template <Ops O>
MemoryPlan plan_for(const RunnerModel& model, const RunnerOptions& o) {
  const ModelConfig& config = model.weights.config;
  const StateShape shape(config);
  using Backend = HostBackend<O>;
  MemoryPlan plan;
  plan.available = available_memory();
  for (const auto& part : model.weights.parts) plan.weights += part.size();
  plan.kv = uint64_t(page_limit(o)) * shape.page_size() * sizeof(typename Backend::Kv);
  plan.recurrent = o.sequences * (shape.recurrent_size() + shape.window_size()) * sizeof(typename O::Real);
  plan.marks = PassRunner<Backend>::kMarks * plan.recurrent;
  plan.scratch =
      model.weights.copied + sizeof(float) * uint64_t(config.vocab) * o.sequences + Backend::scratch_bytes(config, o);
  return plan;
}

MemoryPlan plan(const RunnerModel& model, const RunnerOptions& o) {
  if (o.backend == RunnerOptions::Backend::kCuda) return plan_for_gpu(model, o);
  if (o.backend == RunnerOptions::Backend::kReference) return plan_for<ReferenceOps>(model, o);
  MemoryPlan p = plan_for<CpuOps>(model, o);
  p.scratch += CpuOps::scratch_bytes(model.weights.config, o.threads, o.chunk);
  return p;
}

tl::unexpected<Error> no_profile() {
  return fail(Error::Code::kUnsupported, "only the cpu backend can be profiled");
}

template <Ops O>
std::unique_ptr<Runner> host_runner(std::unique_ptr<RunnerModel> model, std::unique_ptr<O> op,
                                    const RunnerOptions& options, const MemoryPlan& planned) {
  auto backend = std::make_unique<HostBackend<O>>(model->weights, std::move(op), options);
  return std::make_unique<PassRunner<HostBackend<O>>>(std::move(model), std::move(backend), options, planned);
}

}  // namespace

Result<MemoryPlan> plan_memory(const std::filesystem::path& dir, const RunnerOptions& options) {
  CALLA_ASSIGN(const auto model, open_model(dir));
  CALLA_TRY(check_options(options, model->weights.config));
  return plan(*model, choose_device(*model, options));
}

Result<RunnerOptions> complete_options(const std::filesystem::path& dir, const RunnerOptions& options) {
  CALLA_ASSIGN(const auto model, open_model(dir));
  CALLA_TRY(check_options(options, model->weights.config));
  return choose_device(*model, options);
}

Result<std::unique_ptr<Runner>> open_runner(const std::filesystem::path& dir, const RunnerOptions& wanted) {
  CALLA_ASSIGN(auto model, open_model(dir));
  const ModelConfig& config = model->weights.config;
  CALLA_TRY(check_options(wanted, config));
  const RunnerOptions options = choose_device(*model, wanted);
  if (options.backend == RunnerOptions::Backend::kCuda) {
    if (options.profile != nullptr) return no_profile();
    model->pool = std::make_unique<Pool>(options.threads);
    return open_cuda_runner(std::move(model), options);
  }
  const MemoryPlan planned = plan(*model, options);
  const uint64_t needed = planned.anonymous();
  if (const uint64_t available = planned.available; needed > available) {
    return fail(Error::Code::kMemory,
                fmt::format("this plan needs {} of memory besides the weights, and {} is available: "
                            "choose a smaller --context (now {})",
                            format_bytes(needed), format_bytes(available), options.context));
  }
  model->pool = std::make_unique<Pool>(options.threads);
  CALLA_TRY(load_weights(model->checkpoint, model->weights.parts, needed, options.load, *model->pool));
  if (options.backend == RunnerOptions::Backend::kReference) {
    if (options.profile != nullptr) return no_profile();
    return host_runner(std::move(model), std::make_unique<ReferenceOps>(config), options, planned);
  }
  CALLA_ASSIGN(const KernelTable* table, select_table(options.cpu_isa));
  auto op = std::make_unique<CpuOps>(config, *model->pool, *table, options.chunk);
  if (options.profile != nullptr) {
    auto profiled = std::make_unique<ProfiledOps<CpuOps>>(std::move(op), *options.profile);
    return host_runner(std::move(model), std::move(profiled), options, planned);
  }
  return host_runner(std::move(model), std::move(op), options, planned);
}

}  // namespace calla
