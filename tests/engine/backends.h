#pragma once

// The backends that this machine can test: a GPU where there is one.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/runner.h"

namespace calla {

inline std::vector<RunnerOptions::Backend> backends() {
  std::vector<RunnerOptions::Backend> all = {RunnerOptions::Backend::kReference, RunnerOptions::Backend::kCpu};
  if (!gpus().empty()) all.push_back(RunnerOptions::Backend::kCuda);
  return all;
}

inline std::string backend_name(RunnerOptions::Backend backend) {
  return backend == RunnerOptions::Backend::kReference ? "Reference"
         : backend == RunnerOptions::Backend::kCpu     ? "Cpu"
                                                       : "Cuda";
}

}  // namespace calla
