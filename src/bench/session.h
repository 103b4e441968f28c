#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/report.h"
#include "engine/runner.h"

namespace calla {

struct BenchOptions {
  std::filesystem::path model;
  RunnerOptions runner;  // its context and profile are set by run_bench
  std::vector<BenchRow> rows;
  int rounds = 2;
  double tolerance = 0.03;
  double row_seconds = 0;  // once a row would take longer, it and all after it are left out; 0: no limit
  std::string peer;        // a shell command, "" for none
  bool profile = false;
  BenchBuild build;  // for the report
};

// Measures the rows, round by round: in each round every row in order, then the peer. A row is warmed up by a run of
// exactly its shape before its first round, and again after a peer has run; the runner is closed meanwhile. Draws
// progress on standard error. Errors: those of the runner and of the peer's command, kCancelled.
Result<BenchReport> run_bench(const BenchOptions& options, const std::atomic<bool>& cancel);

}  // namespace calla
