#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/load.h"
#include "formats/config.h"

namespace calla {

struct Profile;

// A sequence: the tokens that have gone through the model and the state they left. Made by a Runner, and only for that
// Runner. Destroying it frees its memory; the Runner must outlive it.
class Sequence {
 public:
  virtual ~Sequence() = default;
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int position() const { return static_cast<int>(tokens_.size()); }

 protected:
  std::vector<int32_t> tokens_;
};

// Feeds `tokens` (any number) to `sequence`. Which of their rows get logits: none, the last, or all.
struct Step {
  enum class Logits : uint8_t { kNone, kLast, kAll };
  Sequence* sequence = nullptr;
  std::span<const int32_t> tokens;
  Logits logits = Logits::kLast;
};

struct RunnerOptions {
  // kAuto: a GPU if the checkpoint and the plan fit it, else the processor.
  enum class Backend : uint8_t { kCpu, kReference, kCuda, kAuto };
  Backend backend = Backend::kCpu;
  int gpu = 0;          // which, for kCuda
  int threads = 0;      // 0: as many as the process may use
  std::string cpu_isa;  // "": the best kernel table; else the one to force (select_table)
  int context = 4096;   // most positions of one sequence; sets the size of the page pool
  int sequences = 1;    // how many full contexts the page pool holds
  // Most rows of one pass, to 8192; longer prompts go in chunks. 0: 512, or 2048 with many threads; 4096 on a GPU.
  int chunk = 0;
  int logit_rows = 64;  // most rows of logits in one pass; where all are asked for, passes get no longer than this
  LoadOptions load;
  // Where the time, bytes and multiplications of each verb are added up; only the cpu backend can. Must outlive the
  // runner. Null: nothing is timed.
  Profile* profile = nullptr;
};

// Pages of keys and values, each of 64 positions of a sequence.
struct PageUse {
  int used = 0;  // by sequences; one that several share counts once
  int limit = 0;
  size_t bytes = 0;  // of one
};

// What a runner with these options will need, in bytes: of the host's memory, or of the GPU's.
struct MemoryPlan {
  uint64_t weights = 0;    // mapped from the checkpoint, reclaimable page cache; anonymous with Load::kResident
  uint64_t kv = 0;         // all pages of the pool; taken as a context grows
  uint64_t recurrent = 0;  // states of `sequences` sequences
  uint64_t marks = 0;      // what Runner::mark() keeps of each sequence, at most
  uint64_t scratch = 0;    // activations, logits, per-thread buffers, vectors of the model
  bool on_gpu = false;
  uint64_t available = 0;                                          // of that memory, when the plan was made
  uint64_t anonymous() const { return kv + recurrent + scratch; }  // besides marks
  // What has to be available: mapped weights need not.
  uint64_t needed() const { return anonymous() + (on_gpu ? weights : 0); }
};

// The one virtual seam of the engine: everything above it (server, chat, sampler) sees tokens and logits, never a
// tensor. One thread at a time may use a Runner and its sequences.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual const ModelConfig& config() const = 0;
  virtual int context() const = 0;
  virtual int chunk() const = 0;  // most rows of one pass
  virtual PageUse pages() const = 0;
  virtual size_t state_bytes() const = 0;  // of a sequence, besides its pages
  virtual const MemoryPlan& plan() const = 0;

  virtual Result<std::unique_ptr<Sequence>> start() = 0;

  // Several sequences in one pass; a sequence may appear once. Prompts longer than the chunk are split. Returns the
  // logits, [rows asked for, vocab], in the order of the steps: the runner's own memory, which the caller may change
  // and which lasts until the next call. On an error (a token outside the vocabulary, context exceeded, no pages left:
  // checked before any work) no sequence has changed. `progress`, when given, is called after each pass with the number
  // of tokens done so far; returning false cancels: the sequences then hold the tokens of the passes that ran, and the
  // error is kCancelled.
  using Progress = bool (*)(void* ctx, int done);
  virtual Result<std::span<float>> forward(std::span<const Step> steps, Progress progress = nullptr,
                                           void* ctx = nullptr) = 0;
  // The same, with the logits copied to `logits`.
  Result<void> forward(std::span<const Step> steps, std::vector<float>& logits, Progress progress = nullptr,
                       void* ctx = nullptr) {
    CALLA_ASSIGN(const std::span<float> rows, forward(steps, progress, ctx));
    logits.assign(rows.begin(), rows.end());
    return {};
  }

  // A second sequence with the same tokens and state; the common pages are shared. A snapshot is a fork that is kept
  // and not fed.
  virtual Result<std::unique_ptr<Sequence>> fork(const Sequence& sequence) = 0;
  // `sequence` becomes what `snapshot` is.
  virtual Result<void> restore(Sequence& sequence, const Sequence& snapshot) = 0;
  // Keeps the recurrent part of the present state (the newest four marks of a sequence are kept), so that rollback to
  // here is cheap.
  virtual Result<void> mark(Sequence& sequence) = 0;
  // Takes the last `count` tokens back, 0 to position(). Restores the newest mark at or before the target, or the empty
  // state, and feeds the tokens between again: a recurrent state cannot be cut, so this is exact and costs what lies
  // between.
  virtual Result<void> rollback(Sequence& sequence, int count) = 0;

  // One file a sequence, atomic and checksummed. load() refuses a file that was damaged or written for other weights;
  // saved_tokens() reads only the tokens of one, and is none the wiser about the rest of it. save() may run on another
  // thread than the rest, as long as the sequence is neither changed nor destroyed.
  virtual Result<void> save(const Sequence& sequence, const std::filesystem::path& path) const = 0;
  virtual Result<std::unique_ptr<Sequence>> load(const std::filesystem::path& path) = 0;
  virtual Result<std::vector<int32_t>> saved_tokens(const std::filesystem::path& path) const = 0;
  // A name for the files of this runner: equal where one can load the other's. Letters, digits and hyphens.
  virtual std::string state_version() const = 0;
};

// The GPUs of this machine that the kernels can run on; none in a build without CUDA.
struct Gpu {
  int index = 0;
  std::string name;
  int capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  uint64_t memory = 0, free = 0;  // bytes
};
std::vector<Gpu> gpus();

// What a GPU can do at most, measured in a third of a second.
struct GpuCeilings {
  double read = 0;    // bytes a second
  double matrix = 0;  // f16 multiplications a second of its tensor cores
};
// Errors: no such GPU, its memory, its driver.
Result<GpuCeilings> measure_gpu(int index);

// The options as open_runner takes them for the checkpoint in `dir`: a device for kAuto, values for zeros. Errors:
// those of open_runner about the checkpoint and the options.
Result<RunnerOptions> complete_options(const std::filesystem::path& dir, const RunnerOptions& options);

// Opens the checkpoint in `dir`. Errors: a bad checkpoint, an unknown ISA, a plan that does not fit in memory.
Result<std::unique_ptr<Runner>> open_runner(const std::filesystem::path& dir, const RunnerOptions& options);
Result<MemoryPlan> plan_memory(const std::filesystem::path& dir, const RunnerOptions& options);

}  // namespace calla
