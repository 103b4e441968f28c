#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/generate.h"
#include "engine/model.h"
#include "grammar/grammar.h"

namespace calla {

// One answer to be given. `options.marks` and its callbacks and `cancel` are not used: the sink and Service::cancel()
// stand for them.
struct ServiceRequest {
  std::vector<int32_t> prompt;
  GenerateOptions options;
  std::vector<int> boundaries;             // positions of the prompt, ascending, that later prompts may share
  std::shared_ptr<const Grammar> grammar;  // what the answer (after its reasoning) must be; null: anything
  bool in_reasoning = false;               // the prompt ends inside <think>
  // Most tokens of one block of reasoning before it is closed by force; -1: none. Whatever it says, reasoning never
  // takes all of max_tokens or of the context: a quarter, at most 1024 tokens, is left for the answer.
  int thinking_budget = -1;
  bool side = false;  // a side request, such as a title: its snapshots take no room from those of others
};

// Where an answer goes. The calls come from the service's thread, so they must return at once; they hold a reference,
// so the object lives until the last of them.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // Whether somebody still waits for the answer. Asked when its turn has come.
  virtual bool wanted() const { return true; }
  // `done` of the prompt's `total` tokens are read, `cached` of which were known before.
  virtual void on_prompt(int done, int total, int cached) = 0;
  virtual void on_delta(const Delta& delta) = 0;
  // All sinks have what a pass brought them, so it is time to pass it on: many clients that are served together cost
  // less than the same one by one. Not after on_done().
  virtual void flush() {}
  // Once, as the last call. A cancelled answer is no error: its finish is kCancelled.
  virtual void on_done(Result<Generation> result) = 0;
};

struct ServiceOptions {
  int running = 4;  // most sequences in one pass, 1 to RunnerOptions::sequences
  int queue = 256;  // most requests that wait; one more is kBusy
  // Most rows of prompts in a pass while answers stream: what a long prompt may hold them up by. Alone, prompts are
  // read in passes of Runner::chunk().
  int shared_chunk = 128;
  uint64_t snapshot_bytes = uint64_t{2} << 30;  // for the states of snapshots, or less where memory is less
  std::filesystem::path cache_dir;              // where snapshots outlive the process; "": nowhere
  uint64_t cache_bytes = uint64_t{16} << 30;    // of that folder
  std::function<void(std::string)> log;  // one line of text for people, without its end; from the service's thread
};

// Totals since the start, and what is there now.
struct ServiceStats {
  int queued = 0, running = 0;
  uint64_t requests = 0, finished = 0, cancelled = 0, failed = 0, refused = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0;  // of requests that have ended
  int snapshots = 0;
  uint64_t snapshot_bytes = 0, snapshot_limit = 0;
  int files = 0;  // snapshots on disk
  uint64_t file_bytes = 0;
  PageUse pages;
};

// Answers many requests at once over one model, on a thread of its own: each pass takes one token of every running
// answer and a bounded chunk of the prompts that are being read. While it lives, nobody else may use the model's
// runner. All functions are thread-safe.
class Service {
 public:
  // Errors: an option out of range, a cache_dir that cannot be used.
  static Result<std::unique_ptr<Service>> start(Model& model, ServiceOptions options);
  ~Service();  // stop(false)

  // Queues a request; the result is a ticket for cancel(). Requests start in the order they came. Errors: kBusy, the
  // queue is full or the service is stopping; an option out of range; an empty prompt or one that, with max_tokens, can
  // never fit.
  Result<uint64_t> submit(ServiceRequest request, std::shared_ptr<AnswerSink> sink);
  // Ends an answer before the next pass. Unknown and finished tickets are ignored.
  void cancel(uint64_t ticket);
  ServiceStats stats() const;
  // No more requests; those that run are finished or cancelled, those that wait are cancelled. Returns when all is
  // done.
  void stop(bool finish_running);

 private:
  struct Impl;
  explicit Service(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace calla
