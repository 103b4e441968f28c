#include "engine/cuda_runner.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "backend/cuda/ceilings.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/ops_cuda.h"
#include "backend/cuda/state.h"
#include "base/progress.h"
#include "engine/host_backend.h"
#include "engine/state_file.h"
#include "model/forward.h"

namespace calla {
namespace {

using cuda::CudaOps;
using cuda::CudaScratch;
using cuda::CudaState;
using cuda::DeviceRun;

static_assert(Ops<CudaOps>);

// Rows of logits that one pass may ask for; each is a row of the vocabulary in pinned memory.
int logit_rows(const RunnerOptions& o) {
  return std::min(o.chunk, o.logit_rows);
}
int pages_of(const RunnerOptions& o) {
  return (o.context + kPage - 1) / kPage + 1;
}

// What PassRunner asks of a backend, on a GPU. A pass whose runs all have one row is a step: it is captured once per
// number of rows and magnitude of the context, and replayed.
class CudaBackend {
 public:
  using State = CudaState;
  using Real = float;
  using Kv = bf16;

  static Result<std::unique_ptr<CudaBackend>> make(const Weights& weights, Pool& pool, const RunnerOptions& options,
                                                   const cuda::Device& device) {
    auto b = std::unique_ptr<CudaBackend>(new CudaBackend(weights, options, device));
    if (cudaStreamCreateWithFlags(&b->stream_, cudaStreamNonBlocking) != cudaSuccess) return b->failed();
    CALLA_TRY(b->keep_freed_memory());
    CALLA_ASSIGN(auto on_device, cuda::DeviceWeights::upload(weights, pool, options.load.report));
    b->device_weights_ = std::move(on_device);
    CALLA_ASSIGN(auto pages, cuda::DevicePages::allocate(b->shape_.page_size(), page_limit(options)));
    b->pages_.emplace(std::move(pages));
    CALLA_ASSIGN(b->scratch_, CudaScratch::allocate(weights.config, options.chunk, logit_rows(options)));
    CALLA_ASSIGN(CudaOps ops, CudaOps::make(weights.config, *b->device_weights_, *b->pages_, options.chunk,
                                            device.multiprocessors, b->stream_));
    b->ops_.emplace(std::move(ops));
    const size_t staged = b->staged_bytes();
    CALLA_ASSIGN(b->staged_, cuda::PinnedMemory::allocate(staged));
    CALLA_ASSIGN(b->device_staged_, cuda::DeviceMemory::allocate(staged));
    CALLA_ASSIGN(b->logits_, cuda::PinnedMemory::allocate(sizeof(float) * weights.config.vocab * logit_rows(options)));
    if (cudaDeviceSynchronize() != cudaSuccess) return b->failed();
    return b;
  }
  ~CudaBackend() {
    for (const auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  }

  int max_logits() const { return logit_rows(options_); }
  PageUse pages() const { return {pages_->used(), pages_->limit(), pages_->page_size() * sizeof(Kv)}; }
  size_t state_bytes() const { return CudaState::bytes(shape_); }

  Result<State> start() {
    CALLA_TRY(cuda::use_device(device_.index));
    return State::make(shape_, *pages_, pages_of(options_), stream_);
  }

  Result<void> run(const Batch<State>& batch) {
    CALLA_TRY(cuda::use_device(device_.index));
    const int rows = static_cast<int>(batch.ids.size()), wanted = static_cast<int>(batch.wanted.size());
    const int runs = static_cast<int>(batch.runs.size());
    DeviceRun* const r = staged_.as<DeviceRun>();
    int context = 0;
    for (int i = 0; i < runs; ++i) {
      const Run<State>& run = batch.runs[i];
      r[i] = run.state->run(run.row, run.count, run.position);
      context = std::max(context, run.position + run.count);
    }
    std::ranges::copy(batch.ids, staged_.as<int32_t>(ids_at()));
    std::ranges::copy(batch.wanted, staged_.as<int32_t>(wanted_at()));
    cudaMemcpyAsync(device_staged_.data(), staged_.data(), staged_bytes(), cudaMemcpyHostToDevice, stream_);

    scratch_.resize(rows, wanted);
    const bool step = runs == rows && rows <= CudaOps::kMostSteps;
    if (step) {
      CALLA_TRY(launch_step(batch, std::bit_ceil(static_cast<unsigned>(std::max(context, kLeastContext)))));
    } else {
      launch(batch, context);
    }
    if (wanted > 0) {
      cudaMemcpyAsync(logits_.data(), scratch_.logits.data, sizeof(float) * wanted * weights_.config.vocab,
                      cudaMemcpyDeviceToHost, stream_);
    }
    if (cudaStreamSynchronize(stream_) != cudaSuccess) return failed();
    return {};
  }
  std::span<float> logits(int row) const {
    const size_t vocab = weights_.config.vocab;
    return {logits_.as<float>() + row * vocab, vocab};
  }

  Result<void> write(const std::filesystem::path& path, const Checkpoint& checkpoint, std::span<const int32_t> tokens,
                     const State& state) const {
    const int count = static_cast<int>(tokens.size());
    CALLA_ASSIGN(auto host, on_host(count));
    CALLA_TRY(state.download(count, host->state));
    return write_state_file(path, checkpoint, tokens, host->state);
  }
  Result<void> read(const StateFile& file, State& state) const {
    const int count = static_cast<int>(file.tokens().size());
    CALLA_ASSIGN(auto host, on_host(count));
    CALLA_TRY(file.read(host->state));
    return state.upload(count, host->state);
  }

 private:
  static constexpr int kLeastContext = 256;  // steps of shorter contexts share a graph

  CudaBackend(const Weights& weights, const RunnerOptions& options, cuda::Device device)
      : weights_(weights), options_(options), device_(std::move(device)), shape_(weights.config) {}

  static tl::unexpected<Error> failed() { return tl::unexpected<Error>(cuda::device_error("running the model")); }

  // States come and go; what they give back is not returned to the driver, which would wait for the whole GPU.
  Result<void> keep_freed_memory() {
    cudaMemPool_t pool = nullptr;
    uint64_t all = UINT64_MAX;
    if (cudaDeviceGetDefaultMemPool(&pool, device_.index) != cudaSuccess ||
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all) != cudaSuccess) {
      return failed();
    }
    return {};
  }

  // Runs, ids and wanted rows of a pass, copied to the device as one.
  size_t ids_at() const { return sizeof(DeviceRun) * options_.chunk; }
  size_t wanted_at() const { return ids_at() + sizeof(int32_t) * options_.chunk; }
  size_t staged_bytes() const { return wanted_at() + sizeof(int32_t) * logit_rows(options_); }

  void launch(const Batch<State>& batch, int context) {
    const CudaOps::Pass pass{device_staged_.as<int32_t>(ids_at()), device_staged_.as<int32_t>(wanted_at()),
                             device_staged_.as<DeviceRun>(), context};
    ops_->begin(pass, {staged_.as<DeviceRun>(), batch.runs.size()});
    forward(*ops_, weights_, batch, scratch_);
    ops_->end();
  }

  Result<void> launch_step(const Batch<State>& batch, int context) {
    cudaGraphExec_t& graph = graphs_[{batch.ids.size(), batch.wanted.size(), context}];
    if (graph == nullptr) {
      cudaGraph_t captured = nullptr;
      if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return failed();
      launch(batch, context);
      if (cudaStreamEndCapture(stream_, &captured) != cudaSuccess ||
          cudaGraphInstantiate(&graph, captured, 0) != cudaSuccess) {
        return failed();
      }
      cudaGraphDestroy(captured);
    }
    if (cudaGraphLaunch(graph, stream_) != cudaSuccess) return failed();
    return {};
  }

  struct OnHost {
    OnHost(const StateShape& shape, int pages) : pool(shape.page_size(), pages), state(shape, pool) {}
    PagePool<bf16> pool;
    HostState<bf16, float> state;
  };
  Result<std::unique_ptr<OnHost>> on_host(int count) const {
    auto host = std::make_unique<OnHost>(shape_, (count + kPage - 1) / kPage);
    CHECK(host->state.reserve(0, count), "too few pages for a sequence");
    return host;
  }

  const Weights& weights_;
  const RunnerOptions options_;
  const cuda::Device device_;
  const StateShape shape_;
  cuda::Stream stream_ = nullptr;
  std::optional<cuda::DeviceWeights> device_weights_;
  std::optional<cuda::DevicePages> pages_;
  CudaScratch scratch_;
  std::optional<CudaOps> ops_;
  cuda::PinnedMemory staged_, logits_;
  cuda::DeviceMemory device_staged_;
  std::map<std::tuple<size_t, size_t, int>, cudaGraphExec_t> graphs_;  // by rows, wanted rows, context
};

}  // namespace

std::vector<Gpu> gpus() {
  std::vector<Gpu> found;
  for (const cuda::Device& d : cuda::devices()) {
    found.push_back({d.index, d.name, d.major * 10 + d.minor, d.multiprocessors, d.memory, d.free});
  }
  return found;
}

namespace {

Result<cuda::Device> device_at(int index) {
  const auto found = cuda::devices();
  const auto device = std::ranges::find(found, index, &cuda::Device::index);
  if (device != found.end()) return *device;
  return fail(Error::Code::kUnsupported,
              found.empty()
                  ? "no NVIDIA GPU of compute capability 8.0 or newer is here, or its driver is not: use --device cpu"
                  : fmt::format("there is no GPU {}: `calla doctor` lists them", index));
}

}  // namespace

Result<GpuCeilings> measure_gpu(int index) {
  CALLA_ASSIGN(const cuda::Device device, device_at(index));
  CALLA_TRY(cuda::use_device(device.index));
  CALLA_ASSIGN(const cuda::DeviceCeilings c, cuda::measure_ceilings());
  return GpuCeilings{c.read, c.matrix};
}

RunnerOptions complete_for_gpu(RunnerOptions o) {
  constexpr int kChunk = 4096;
  if (o.chunk == 0) o.chunk = kChunk;
  o.chunk = std::min(o.chunk, o.context);
  return o;
}

MemoryPlan plan_for_gpu(const RunnerModel& model, const RunnerOptions& o) {
  const ModelConfig& config = model.weights.config;
  const StateShape shape(config);
  MemoryPlan plan;
  plan.on_gpu = true;
  for (const Gpu& gpu : gpus()) {
    if (gpu.index == o.gpu) plan.available = gpu.free;
  }
  plan.weights = cuda::DeviceWeights::bytes(model.weights);
  plan.kv = uint64_t(page_limit(o)) * shape.page_size() * sizeof(bf16);
  plan.recurrent = o.sequences * CudaState::bytes(shape);
  plan.marks = PassRunner<CudaBackend>::kMarks * plan.recurrent;
  constexpr int kManyMultiprocessors = 256;  // an upper bound, for a plan without the device
  plan.scratch = CudaScratch::bytes(config, o.chunk, logit_rows(o)) +
                 CudaOps::scratch_bytes(config, o.chunk, kManyMultiprocessors);
  return plan;
}

namespace {

struct Fit {
  cuda::Device device;
  MemoryPlan plan;
};
Result<Fit> fit(const RunnerModel& model, const RunnerOptions& options) {
  CALLA_ASSIGN(const cuda::Device device, device_at(options.gpu));
  CALLA_TRY(cuda::DeviceWeights::check(model.weights));
  const MemoryPlan plan = plan_for_gpu(model, options);
  if (const uint64_t needed = plan.needed(); needed > device.free) {
    return fail(Error::Code::kMemory,
                fmt::format("this plan needs {} of the GPU's memory ({} weights, {} keys and values, {} states and "
                            "scratch), and {} of {} are free: choose a smaller --context (now {}), or --device cpu",
                            format_bytes(needed), format_bytes(plan.weights), format_bytes(plan.kv),
                            format_bytes(plan.recurrent + plan.scratch), format_bytes(device.free),
                            format_bytes(device.memory), options.context));
  }
  return Fit{device, plan};
}

}  // namespace

Result<void> check_gpu(const RunnerModel& model, const RunnerOptions& options) {
  CALLA_TRY(fit(model, options));
  return {};
}

Result<std::unique_ptr<Runner>> open_cuda_runner(std::unique_ptr<RunnerModel> model, const RunnerOptions& options) {
  CALLA_ASSIGN(const Fit found, fit(*model, options));
  CALLA_TRY(cuda::use_device(found.device.index));
  CALLA_ASSIGN(auto backend, CudaBackend::make(model->weights, *model->pool, options, found.device));
  return std::make_unique<PassRunner<CudaBackend>>(std::move(model), std::move(backend), options, found.plan);
}

}  // namespace calla
