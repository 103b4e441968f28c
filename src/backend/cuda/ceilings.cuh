#pragma once

#include "backend/cuda/types.h"

namespace calla::cuda {

// Multiplications of `repeats` rounds of wgmma (ceilings_sm90.cu), one block on each multiprocessor; launched on the
// default stream. `out` is not written to.
double launch_wgmma_rounds(int multiprocessors, int repeats, float* out);

}  // namespace calla::cuda
