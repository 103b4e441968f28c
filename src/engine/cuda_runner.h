#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/pass_runner.h"
#include "engine/runner.h"

namespace calla {

// The runner on a GPU. In a build without nvcc there are no GPUs, and open_cuda_runner says so.

// Whether open_cuda_runner can: kUnsupported (no such GPU, or a checkpoint that the kernels do not read), kMemory with
// the plan where it does not fit. Options are complete (complete_for_gpu).
Result<void> check_gpu(const RunnerModel& model, const RunnerOptions& options);
// Takes the weights to the GPU of options.gpu, with pages and scratch beside them. Errors as above.
Result<std::unique_ptr<Runner>> open_cuda_runner(std::unique_ptr<RunnerModel> model, const RunnerOptions& options);

// What 0 stands for on a GPU.
RunnerOptions complete_for_gpu(RunnerOptions options);
// What a runner on a GPU will need of its memory.
MemoryPlan plan_for_gpu(const RunnerModel& model, const RunnerOptions& options);

}  // namespace calla
