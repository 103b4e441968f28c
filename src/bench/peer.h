#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "bench/row.h"

namespace calla {

// One thing that a peer measured.
struct PeerTest {
  enum class Kind { kPrefill, kDecode };
  Kind kind = Kind::kPrefill;
  int tokens = 0;
  int depth = 0;              // tokens before the first of these
  std::vector<double> rates;  // tokens a second, one for each repetition
};

// The output of a peer's benchmark: `llama-bench -o json` (lines that its build prints in between and that cannot be
// JSON are passed over; a test of a prompt and an answer as one figure is left out), or `mlx_lm.benchmark`. Errors name
// what is missing or out of range; nothing measured is one too.
Result<std::vector<PeerTest>> parse_peer(std::string_view output);

// The median over everything that `tests` hold for this row's prompt, and for decoding at its depth (of any number of
// tokens); 0: nothing.
struct PeerRates {
  double prefill = 0, decode = 0;
};
PeerRates peer_rates(const std::vector<PeerTest>& tests, const BenchRow& row);

}  // namespace calla
