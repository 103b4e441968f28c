#pragma once

#include "base/result.h"

namespace calla::cuda {

// What the current device can do at most, measured: speeds are a share of these. Takes about a third of a second.
struct DeviceCeilings {
  double read = 0;    // bytes a second, of a buffer of 2 GiB (or half of the free memory)
  double matrix = 0;  // f16 multiplications a second of the tensor cores, sums in f32
};
// Errors: no memory, or what the driver says.
Result<DeviceCeilings> measure_ceilings();

}  // namespace calla::cuda
