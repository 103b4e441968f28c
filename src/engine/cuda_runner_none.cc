// The GPU's part of a build without nvcc.

#include "engine/cuda_runner.h"

namespace calla {

std::vector<Gpu> gpus() {
  return {};
}

namespace {

tl::unexpected<Error> no_cuda() {
  return fail(Error::Code::kUnsupported,
              "this build has no CUDA: build it where nvcc is on PATH (CUDA 12.4 or newer), or use --device cpu");
}

}  // namespace

Result<GpuCeilings> measure_gpu(int) {
  return no_cuda();
}

Result<void> check_gpu(const RunnerModel&, const RunnerOptions&) {
  return no_cuda();
}

Result<std::unique_ptr<Runner>> open_cuda_runner(std::unique_ptr<RunnerModel> model, const RunnerOptions& options) {
  return tl::unexpected<Error>(check_gpu(*model, options).error());
}

RunnerOptions complete_for_gpu(RunnerOptions options) {
  return options;
}

MemoryPlan plan_for_gpu(const RunnerModel&, const RunnerOptions&) {
  return {};
}

}  // namespace calla
