#include "convert/synth_random.h"

#include <cmath>

namespace calla {
namespace {

float vector_value(Part::Kind kind, Random& random) {
  switch (kind) {
    case Part::Kind::kConv:
      return 0.5f * bell(random.next());
    case Part::Kind::kALog:
      return static_cast<float>(std::log(1 + 15 * random.uniform()));
    case Part::Kind::kDtBias: {  // the inverse of softplus at a step from 0.001 to 0.1
      const double step = 0.001 * std::pow(100.0, random.uniform());
      return static_cast<float>(step + std::log(-std::expm1(-step)));
    }
    default:
      return 1 + 0.05f * bell(random.next());
  }
}

}  // namespace

Random row_stream(uint64_t seed, std::string_view name, uint64_t row) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return Random(Random(Random(seed).next() ^ hash).next() + row * 0x9e3779b97f4a7c15ull * 0x10001ull);
}

float bell(uint64_t bits) {
  int sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<int>(bits >> (16 * i) & 0xffff);
  return (static_cast<float>(sum) - 2 * 65535.0f) * (1.7320508f / 65536.0f);
}

std::vector<float> random_vector(const Part& part, uint64_t seed) {
  Random random = row_stream(seed, part.name, 0);
  std::vector<float> values(part.values_count());
  for (float& v : values) v = vector_value(part.kind, random);
  return values;
}

}  // namespace calla
