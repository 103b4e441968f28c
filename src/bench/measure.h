#pragma once

#include <functional>
#include <vector>

#include "base/result.h"
#include "bench/energy.h"
#include "bench/row.h"
#include "engine/runner.h"

namespace calla {

struct MeasureOptions {
  int rounds = 1;
  Profile* profile = nullptr;  // the one that the runner adds to, if any
  const EnergyMeter* energy = nullptr;
  // Called with the number of tokens done so far, of measure_tokens() in all; false stops with kCancelled.
  std::function<bool(int done)> on_tokens;
};

// Runs a row `rounds` times, each from a fresh state: a new sequence, or at a depth one that is taken back to exactly
// there. Errors: those of the runner.
Result<std::vector<BenchRound>> measure(Runner& runner, const BenchRow& row, const MeasureOptions& options);

inline int measure_tokens(const BenchRow& row, int rounds) {
  return row.depth + rounds * (row.prompt + row.steps);
}

}  // namespace calla
