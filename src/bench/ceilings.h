#pragma once

#include <cstdint>
#include <string>

#include "base/pool.h"
#include "base/result.h"

namespace calla {

// What the machine can do at most, measured. Every speed of Calla is a share of one of these.

// Bytes a second that the pool's threads read together, the best of a few passes over a buffer that no cache holds (512
// MiB, or an eighth of the free memory where that is less). Takes about half a second.
double measure_read_bandwidth(Pool& pool);

// 4-bit products with 8-bit activations, of weights that are in the cache: multiplications and additions (MAC) a
// second, all threads. This bounds the reading of long prompts. "": the best kernels that this processor can run.
Result<double> measure_int8_rate(Pool& pool, const std::string& isa);

// Compares the products of each kernel table that this processor can run with the plain formula in f64, on random
// weights. Returns one line for each table; an error names the table and the kernel that is wrong.
Result<std::string> test_kernels();

}  // namespace calla
