#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory.h"
#include "bench/peer.h"
#include "bench/row.h"
#include "formats/config.h"

namespace calla {

// What the machine can do at most (bench/ceilings.h): the best of a measurement before each round and one after the
// last.
struct Ceilings {
  double read = 0;               // bytes a second
  double matrix = 0;             // multiplications a second
  std::string numbers = "int8";  // which these multiply
};

struct BenchResult {
  BenchRow row;
  BenchCost cost;
  std::vector<BenchRound> warm_ups, rounds;
  BenchSummary summary;

  // Tokens a second that the machine allows.
  double prefill_ceiling(const Ceilings& c) const { return row.prompt * c.matrix / cost.prefill_macs; }
  double decode_ceiling(const Ceilings& c) const { return c.read / cost.decode_bytes; }
};

// Which program measured.
struct BenchBuild {
  std::string version;
  std::string sha256;  // of the executable
};

struct BenchReport {
  BenchBuild build;
  struct Machine {
    std::string processor, isa;
    int threads = 0;
    uint64_t memory = 0;
    std::string unit = "thread";  // what `threads` counts: on a GPU its multiprocessors
    std::string units() const;    // "2 threads"
  } machine;
  struct Model {
    std::string name, fingerprint;
    uint64_t bytes = 0;            // of all tensors
    uint64_t bytes_per_token = 0;  // Weights::bytes_per_token
    uint64_t macs_per_token = 0;   // Weights::macs_per_token
    ModelConfig config;
  } model;
  double tolerance = 0;
  Ceilings ceilings;
  std::vector<double> load_seconds;  // from nothing to a runner, each time one was opened
  ProcessMemory peak;                // the largest of all rounds
  std::vector<BenchResult> results;
  std::vector<BenchRow> skipped;  // for their time
  std::string peer;               // its command
  std::vector<PeerTest> peer_tests;
  bool profiled = false;

  int refused() const;
};

// The report for people: what ran where, the table, against a peer the ratios of medians, and the verbs where they were
// profiled.
std::string report_text(const BenchReport& report);

// Everything, for programs: one JSON object.
std::string report_json(const BenchReport& report);

}  // namespace calla
