#include "bench/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "backend/cpu/select.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "base/progress.h"
#include "bench/ceilings.h"
#include "bench/command.h"
#include "bench/energy.h"
#include "bench/measure.h"
#include "engine/state_file.h"
#include "formats/checkpoint.h"

namespace calla {
namespace {

class Session {
 public:
  Session(const BenchOptions& options, const std::atomic<bool>& cancel) : options_(options), cancel_(cancel) {}

  Result<BenchReport> run() {
    CALLA_TRY(describe());
    for (int round = 1; round <= options_.rounds; ++round) {
      if (runner_ == nullptr) CALLA_TRY(open());
      for (size_t i = 0; i < report_.results.size(); ++i) CALLA_TRY(measure_row(i, round));
      if (options_.peer.empty()) continue;
      runner_.reset();
      CALLA_TRY(run_peer(round));
    }
    runner_.reset();
    CALLA_TRY(raise_ceilings());
    for (BenchResult& r : report_.results) {
      r.summary = summarise(r.row, r.rounds, r.warm_ups, options_.tolerance);
    }
    return std::move(report_);
  }

 private:
  Result<void> describe() {
    RunnerOptions wanted = options_.runner;
    wanted.context = 1;
    for (const BenchRow& row : options_.rows) wanted.context = std::max(wanted.context, row.positions());
    if (options_.profile) wanted.profile = &profile_;
    CALLA_ASSIGN(runner_options_, complete_options(options_.model, wanted));
    CALLA_TRY(describe_machine());
    CALLA_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(options_.model));
    CALLA_ASSIGN(const Weights weights, bind_weights(checkpoint));
    report_.model = {options_.model.filename().string(), fingerprint(checkpoint),  checkpoint.total_bytes(),
                     weights.bytes_per_token(),          weights.macs_per_token(), weights.config};
    for (const BenchRow& row : options_.rows) {
      report_.results.push_back({row, cost_of(weights, row), {}, {}, {}});
    }
    report_.build = options_.build;
    report_.tolerance = options_.tolerance;
    report_.peer = options_.peer;
    report_.profiled = options_.profile;
    return {};
  }

  Result<void> describe_machine() {
    if (on_gpu()) {
      for (const Gpu& gpu : gpus()) {
        if (gpu.index != runner_options_.gpu) continue;
        report_.machine = {gpu.name, fmt::format("CUDA {}.{}", gpu.capability / 10, gpu.capability % 10),
                           gpu.multiprocessors, gpu.memory, "multiprocessor"};
      }
      report_.ceilings.numbers = "f16";
      return {};
    }
    CALLA_ASSIGN(const KernelTable* table, select_table(runner_options_.cpu_isa));
    const bool reference = runner_options_.backend == RunnerOptions::Backend::kReference;
    report_.machine = {cpu_info().name, reference ? "reference" : table->isa, reference ? 1 : runner_options_.threads,
                       total_memory()};
    return {};
  }
  bool on_gpu() const { return runner_options_.backend == RunnerOptions::Backend::kCuda; }

  Result<void> raise_ceilings() {
    GpuCeilings found;
    if (on_gpu()) {
      CALLA_ASSIGN(found, measure_gpu(runner_options_.gpu));
    } else {
      Pool pool(runner_options_.threads);
      CALLA_ASSIGN(found.matrix, measure_int8_rate(pool, runner_options_.cpu_isa));
      found.read = measure_read_bandwidth(pool);
    }
    Ceilings& c = report_.ceilings;
    c.matrix = std::max(c.matrix, found.matrix);
    c.read = std::max(c.read, found.read);
    return {};
  }

  // The ceilings come first: their buffer may push weights out of a full memory, and every row is warmed up after this.
  Result<void> open() {
    CALLA_TRY(raise_ceilings());
    const auto start = Clock::now();
    CALLA_ASSIGN(runner_, open_runner(options_.model, runner_options_));
    report_.load_seconds.push_back(seconds_since(start));
    warm_.assign(report_.results.size(), false);
    return {};
  }

  Result<void> measure_row(size_t index, int round) {
    BenchResult& result = report_.results[index];
    const BenchRow& row = result.row;
    MeasureOptions measuring;
    measuring.rounds = warm_[index] ? 1 : 2;
    measuring.profile = options_.profile ? &profile_ : nullptr;
    measuring.energy = &energy_;
    Progress progress(fmt::format("round {} of {}: {}", round, options_.rounds, row.name()),
                      measure_tokens(row, measuring.rounds), Progress::Unit::kItems);
    measuring.on_tokens = [&](int done) {
      progress.update(done);
      return !cancel_;
    };
    const auto start = Clock::now();
    CALLA_ASSIGN(std::vector<BenchRound> measured, measure(*runner_, row, measuring));
    const double seconds = seconds_since(start);
    for (const BenchRound& r : measured) {
      report_.peak.anonymous = std::max(report_.peak.anonymous, r.memory.anonymous);
      report_.peak.total = std::max(report_.peak.total, r.memory.total);
    }
    result.rounds.push_back(std::move(measured.back()));
    if (!warm_[index]) result.warm_ups.push_back(std::move(measured.front()));
    warm_[index] = true;
    if (round == 1) skip_after(index, seconds / 2);
    return {};
  }

  // Leaves out the rows after `index`, one run of which took `seconds`, if the next would take too long: its time grows
  // at least as its length.
  void skip_after(size_t index, double seconds) {
    std::vector<BenchResult>& rows = report_.results;
    if (options_.row_seconds == 0 || index + 1 == rows.size()) return;
    const int runs = options_.peer.empty() ? options_.rounds + 1 : 2 * options_.rounds;
    const double growth = double(measure_tokens(rows[index + 1].row, 1)) / measure_tokens(rows[index].row, 1);
    if (runs * seconds * growth <= options_.row_seconds) return;
    for (size_t i = index + 1; i < rows.size(); ++i) report_.skipped.push_back(rows[i].row);
    rows.resize(index + 1);
  }

  Result<void> run_peer(int round) {
    fmt::print(stderr, "round {} of {}: the peer runs\n", round, options_.rounds);
    CALLA_ASSIGN(const std::string output, run_command(options_.peer, cancel_));
    CALLA_ASSIGN(const std::vector<PeerTest> tests, parse_peer(output));
    report_.peer_tests.insert(report_.peer_tests.end(), tests.begin(), tests.end());
    return {};
  }

  const BenchOptions& options_;
  const std::atomic<bool>& cancel_;
  Profile profile_;
  EnergyMeter energy_;
  BenchReport report_;
  RunnerOptions runner_options_;
  std::unique_ptr<Runner> runner_;
  std::vector<bool> warm_;  // rows that this runner has run
};

}  // namespace

Result<BenchReport> run_bench(const BenchOptions& options, const std::atomic<bool>& cancel) {
  return Session(options, cancel).run();
}

}  // namespace calla
