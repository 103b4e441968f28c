#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "convert/parts.h"

namespace calla {

// The random numbers of a row of a tensor: one stream each, so that any part can be made again on its own.
Random row_stream(uint64_t seed, std::string_view name, uint64_t row);

// 64 random bits as a roughly normal number of unit variance: the sum of four uniform ones.
float bell(uint64_t bits);

// Values of a vector of the model. Norms as they multiply, that is with the +1 of zero-centred ones.
std::vector<float> random_vector(const Part& part, uint64_t seed);

}  // namespace calla
