#include "engine/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/memory.h"
#include "base/progress.h"
#include "engine/answer.h"
#include "engine/prefix_cache.h"
#include "formats/printable.h"
#include "model/state.h"

namespace calla {
namespace {

// A snapshot is not worth a pass of its own so close to another.
constexpr int kNear = 16;
constexpr size_t kMostCuts = 8;
constexpr int kFarFromTheEnd = 64;
// A prompt waits for another to be read if that saves it this many tokens.
constexpr int kWorthWaiting = 64;
// A prompt that was passed over this often in favour of shorter ones is read next.
constexpr int kPatience = 8;

struct Job {
  uint64_t ticket = 0;
  ServiceRequest request;
  std::shared_ptr<AnswerSink> sink;
  int pages = 0;          // that it may come to need
  bool admitted = false;  // they are reserved
  // From when its turn has come:
  std::unique_ptr<Sequence> sequence;
  std::optional<Answer> answer;
  std::vector<int> cuts;  // positions to come at which a snapshot is kept, the last first
  bool decoding = false;  // the prompt is read
  int32_t token = 0;      // of the answer, to be fed next
  int passed_over = 0;

  int prompt_size() const { return static_cast<int>(request.prompt.size()); }
  // Tokens to the next snapshot or to the end of the prompt.
  int stretch() const { return (cuts.empty() ? prompt_size() : cuts.back()) - sequence->position(); }
  int unread() const { return prompt_size() - sequence->position(); }
};

// Where to keep snapshots of a prompt that is read from position `from` on, the last first. known: where it leaves the
// prompts that were read before. durable: they go to disk, where there are no logits, so that one at the very end would
// not help the same prompt.
std::vector<int> choose_cuts(const ServiceRequest& request, int from, int known, bool durable) {
  const int end = static_cast<int>(request.prompt.size());
  std::vector<int> cuts;
  const int near_end = std::max(from, end - kFarFromTheEnd);
  if (durable && near_end > from && (request.boundaries.empty() || request.boundaries.back() <= near_end)) {
    cuts.push_back(end - 1);
  }
  for (auto it = request.boundaries.rbegin(); it != request.boundaries.rend(); ++it) {
    if (*it >= end || *it <= from) continue;
    // The last boundary counts wherever it is: what follows it is rendered differently in the next turn.
    if (!cuts.empty() && (cuts.back() - *it < kNear || *it - from < kNear)) continue;
    cuts.push_back(*it);
  }
  const bool apart = known - from >= kNear && end - known >= kNear &&
                     std::ranges::none_of(cuts, [&](int cut) { return std::abs(cut - known) < kNear; });
  if (apart) cuts.insert(std::ranges::lower_bound(cuts, known, std::greater()), known);
  // Too many: the ones that save least go, but the first (the system's end) and the last three stay.
  while (cuts.size() > kMostCuts) {
    size_t least = 3;
    for (size_t i = 3; i + 1 < cuts.size(); ++i) {
      if (cuts[i] - cuts[i + 1] < cuts[least] - cuts[least + 1]) least = i;
    }
    cuts.erase(cuts.begin() + static_cast<ptrdiff_t>(least));
  }
  return cuts;
}

Generation cancelled_generation(const ServiceRequest& request) {
  Generation out;
  out.finish = FinishReason::kCancelled;
  out.prompt_tokens = static_cast<int>(request.prompt.size());
  return out;
}

Result<void> check(const ServiceOptions& o) {
  if (o.running < 1 || o.running > 4096) return invalid(fmt::format("{} sequences: expected 1 to 4096", o.running));
  if (o.queue < 0) return invalid(fmt::format("a queue of {}: expected 0 or more", o.queue));
  if (o.shared_chunk < 1) return invalid(fmt::format("a chunk of {} rows: expected 1 or more", o.shared_chunk));
  return {};
}

}  // namespace

struct Service::Impl {
  Impl(Model& m, ServiceOptions o) : model(m), runner(m.runner()), options(std::move(o)) {}

  Result<void> start();
  void run();
  void say(const std::vector<std::string>& lines) const;
  bool take_orders();
  void admit();
  void pass();
  void plan();
  void begin();
  bool keeps() const { return totals.snapshot_limit >= runner.state_bytes(); }  // the limit never changes
  bool can_wait(const Job& job) const;
  void begin(Job& job);
  void report(const Job& job, const PrefixCache::Hit& hit) const;
  void keep(const Job& job, std::span<const float> logits);
  void advance(Job& job, std::span<float> own);
  void start_answer(Job& job, std::span<float> own);
  void choose(Job& job, std::span<float> own);
  void finish(Job& job, Result<Generation> result);
  void forget_finished();

  Model& model;
  Runner& runner;
  const ServiceOptions options;

  // Of the service's thread alone.
  std::vector<std::unique_ptr<Job>> running;
  int reserved = 0;  // pages, of all that run
  std::vector<Step> steps;
  std::vector<Job*> stepping;  // the job of each step
  std::vector<Job*> reading;

  mutable std::mutex mutex;
  // Guarded by the mutex.
  std::condition_variable wake;
  std::deque<std::unique_ptr<Job>> waiting;
  std::vector<uint64_t> cancels;
  bool stopping = false, finishing = false;
  bool news = false;  // from the snapshots' store
  uint64_t last_ticket = 0;
  ServiceStats totals;

  // Of the service's thread. Its store's thread takes the mutex, so it must go first.
  std::unique_ptr<PrefixCache> cache;
  std::thread thread;
};

Result<void> Service::Impl::start() {
  std::unique_ptr<SnapshotStore> store;
  if (!options.cache_dir.empty()) {
    CALLA_ASSIGN(store, SnapshotStore::open(runner, options.cache_dir, options.cache_bytes, [this] {
                   const std::lock_guard lock(mutex);
                   news = true;
                   wake.notify_one();
                 }));
  }
  // What is planned and not taken yet: pages, and the states of sequences.
  const PageUse pages = runner.pages();
  const uint64_t planned =
      uint64_t(pages.limit - pages.used) * pages.bytes + uint64_t(options.running) * runner.state_bytes();
  const uint64_t available = available_memory();
  const uint64_t left = available > planned ? (available - planned) / 2 : 0;
  totals.snapshot_limit = std::min(options.snapshot_bytes, left);
  if (totals.snapshot_limit < options.snapshot_bytes) {
    say({fmt::format("snapshots may take {} instead of {}: half of the memory that is left", format_bytes(left),
                     format_bytes(options.snapshot_bytes))});
  }
  cache = std::make_unique<PrefixCache>(runner, totals.snapshot_limit, std::move(store));
  thread = std::thread([this] { run(); });
  return {};
}

void Service::Impl::say(const std::vector<std::string>& lines) const {
  for (const std::string& line : lines) {
    if (options.log) options.log(line);
  }
}

void Service::Impl::run() {
  while (take_orders()) {
    say(cache->tidy());
    admit();
    begin();
    if (!running.empty()) pass();
  }
  say(cache->flush());
}

// Waits for something to do; cancels what is to be cancelled. False: the service ends.
bool Service::Impl::take_orders() {
  std::vector<uint64_t> tickets;
  bool end = false, all = false;
  std::deque<std::unique_ptr<Job>> dropped;
  {
    std::unique_lock lock(mutex);
    totals.running = static_cast<int>(running.size());
    totals.snapshots = cache->count();
    totals.snapshot_bytes = cache->bytes();
    totals.files = cache->files();
    totals.file_bytes = cache->file_bytes();
    totals.pages = runner.pages();
    wake.wait(lock, [&] { return stopping || news || !cancels.empty() || !waiting.empty() || !running.empty(); });
    tickets.swap(cancels);
    news = false;
    end = stopping;
    all = stopping && !finishing;
    const auto gone = [&](const auto& job) { return end || std::ranges::count(tickets, job->ticket) > 0; };
    for (auto& job : waiting) {
      if (gone(job)) dropped.push_back(std::move(job));
    }
    std::erase(waiting, nullptr);
  }
  for (const auto& job : dropped) finish(*job, cancelled_generation(job->request));
  for (auto& job : running) {
    if (!all && std::ranges::count(tickets, job->ticket) == 0) continue;
    if (job->answer) {
      job->answer->cancel();
      finish(*job, std::move(job->answer->generation()));
    } else {
      finish(*job, cancelled_generation(job->request));
    }
  }
  forget_finished();
  return !end || !running.empty();
}

// In the order of arrival, as far as sequences and pages go.
void Service::Impl::admit() {
  while (static_cast<int>(running.size()) < options.running) {
    std::unique_ptr<Job> job;
    {
      const std::lock_guard lock(mutex);
      if (waiting.empty() || reserved + waiting.front()->pages > runner.pages().limit) return;
      job = std::move(waiting.front());
      waiting.pop_front();
      ++totals.running;  // never idle in between
    }
    if (!job->sink->wanted()) {
      finish(*job, cancelled_generation(job->request));
      continue;
    }
    reserved += job->pages;
    job->admitted = true;
    running.push_back(std::move(job));
  }
}

// Gives sequences to those that have none yet.
void Service::Impl::begin() {
  for (auto& job : running) {
    if (!job->sequence && !can_wait(*job)) begin(*job);
  }
  forget_finished();
}

// Whether a prompt that is being read will soon leave a snapshot that is worth waiting for.
bool Service::Impl::can_wait(const Job& job) const {
  if (!keeps()) return false;
  const auto& prompt = job.request.prompt;
  for (const auto& other : running) {
    if (!other->sequence || other->decoding) continue;
    const auto& theirs = other->request.prompt;
    const int common = static_cast<int>(std::ranges::mismatch(theirs, prompt).in1 - theirs.begin());
    int best = 0;
    for (const int cut : other->cuts) {
      if (cut <= common && cut < job.prompt_size()) best = std::max(best, cut);
    }
    if (common == other->prompt_size()) best = common;
    if (best > other->sequence->position() && best - cache->depth(prompt) >= kWorthWaiting) return true;
  }
  return false;
}

// From the deepest snapshot.
void Service::Impl::begin(Job& job) {
  PrefixCache::Hit hit = cache->find(job.request.prompt);
  Result<std::unique_ptr<Sequence>> sequence = hit.snapshot == nullptr ? runner.start() : runner.fork(*hit.snapshot);
  if (!sequence) {
    finish(job, tl::unexpected<Error>(sequence.error()));
    return;
  }
  job.sequence = std::move(*sequence);
  const AnswerRules rules{job.request.grammar, job.request.in_reasoning, job.request.thinking_budget};
  job.answer.emplace(model, job.request.prompt, job.request.options, rules, [sink = job.sink](const Delta& d) {
    sink->on_delta(d);
    return true;
  });
  const int position = job.sequence->position();
  job.answer->generation().reused_tokens = position;
  job.cuts = choose_cuts(job.request, position, hit.known, !options.cache_dir.empty());
  report(job, hit);
  job.sink->on_prompt(position, job.prompt_size(), position);
  if (job.unread() > 0) return;
  start_answer(job, hit.logits);
}

void Service::Impl::report(const Job& job, const PrefixCache::Hit& hit) const {
  if (!options.log || hit.instead.empty() || hit.known == 0) return;
  const auto text = [&](std::span<const int32_t> ids) {
    std::string out;
    for (const int32_t id : ids) out += model.tokenizer().bytes(id);
    return printable(out);
  };
  const std::span<const int32_t> prompt = job.request.prompt;
  const size_t known = hit.known, before = std::min<size_t>(known, 8),
               after = std::min<size_t>(prompt.size() - known, 16);
  options.log(
      fmt::format("request {}: the prompt parts from what was read before at token {} of {}, after \"{}\": now \"{}\", "
                  "then \"{}\"; {} tokens are reused",
                  job.ticket, known, prompt.size(), text(prompt.subspan(known - before, before)),
                  text(prompt.subspan(known, after)), text(hit.instead), job.sequence->position()));
}

// Keeps a snapshot of where a job's sequence stands.
void Service::Impl::keep(const Job& job, std::span<const float> own) {
  if (!keeps()) return;
  if (own.empty() && cache->has(job.sequence->tokens())) return;
  if (auto snapshot = runner.fork(*job.sequence)) cache->put(std::move(*snapshot), own, job.request.side);
}

// The steps of the next pass: one token of each answer, then prompts, the ones with the least left first.
void Service::Impl::plan() {
  steps.clear();
  stepping.clear();
  reading.clear();
  for (const auto& job : running) {
    if (!job->sequence) continue;  // it waits for another's snapshot
    if (!job->decoding) {
      reading.push_back(job.get());
      continue;
    }
    steps.push_back({job->sequence.get(), {&job->token, 1}, Step::Logits::kLast});
    stepping.push_back(job.get());
  }
  const int room = runner.chunk() - static_cast<int>(steps.size());
  int rows = steps.empty() ? room : std::clamp(options.shared_chunk, 1, std::max(room, 1));
  std::ranges::stable_sort(reading, {},
                           [](const Job* job) { return std::pair(job->passed_over < kPatience, job->unread()); });
  for (Job* job : reading) {
    const int count = std::min(rows, job->stretch());
    job->passed_over = count > 0 ? 0 : job->passed_over + 1;
    if (count == 0) continue;
    const std::span<const int32_t> prompt = job->request.prompt;
    const bool last = count == job->unread();
    steps.push_back({job->sequence.get(), prompt.subspan(job->sequence->position(), count),
                     last ? Step::Logits::kLast : Step::Logits::kNone});
    stepping.push_back(job);
    rows -= count;
  }
}

void Service::Impl::pass() {
  plan();
  Result<std::span<float>> result = runner.forward(steps);
  while (!result && result.error().code == Error::Code::kMemory && cache->make_room()) {
    result = runner.forward(steps);
  }
  const auto vocab = static_cast<size_t>(runner.config().vocab);
  size_t row = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    Job& job = *stepping[i];
    if (!result) {
      finish(job, tl::unexpected<Error>(result.error()));
      continue;
    }
    std::span<float> own;
    if (steps[i].logits == Step::Logits::kLast) own = result->subspan(row++ * vocab, vocab);
    advance(job, own);
  }
  for (Job* job : stepping) {
    if (job->admitted) job->sink->flush();
  }
  forget_finished();
}

void Service::Impl::forget_finished() {
  std::erase_if(running, [](const auto& job) { return !job->admitted; });
}

// What a pass brought a job.
void Service::Impl::advance(Job& job, std::span<float> own) {
  if (job.decoding) {
    choose(job, own);
    return;
  }
  const int position = job.sequence->position();
  job.sink->on_prompt(position, job.prompt_size(), job.answer->generation().reused_tokens);
  if (job.unread() == 0) {
    keep(job, own);
    start_answer(job, own);
  } else if (!job.cuts.empty() && job.cuts.back() == position) {
    job.cuts.pop_back();
    keep(job, {});
  }
}

void Service::Impl::start_answer(Job& job, std::span<float> own) {
  job.answer->prompt_read();
  job.decoding = true;
  choose(job, own);
}

void Service::Impl::choose(Job& job, std::span<float> own) {
  const Result<bool> more = job.answer->next(own);
  if (!more) {
    finish(job, tl::unexpected<Error>(more.error()));
  } else if (*more) {
    job.token = job.answer->token();
  } else {
    finish(job, std::move(job.answer->generation()));
  }
}

// Of a job that runs or waits; its owner forgets it afterwards.
void Service::Impl::finish(Job& job, Result<Generation> result) {
  if (job.admitted) reserved -= job.pages;
  job.admitted = false;
  if (job.sequence && result) cache->put(std::move(job.sequence), {}, job.request.side);
  job.sequence = nullptr;
  {
    const std::lock_guard lock(mutex);
    if (!result) {
      ++totals.failed;
    } else {
      ++(result->finish == FinishReason::kCancelled ? totals.cancelled : totals.finished);
      totals.prompt_tokens += result->prompt_tokens;
      totals.answer_tokens += result->tokens.size();
      totals.cached_tokens += result->reused_tokens;
    }
  }
  job.sink->on_done(std::move(result));
}

Service::Service(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Service>> Service::start(Model& model, ServiceOptions options) {
  CALLA_TRY(check(options));
  auto impl = std::make_unique<Impl>(model, std::move(options));
  CALLA_TRY(impl->start());
  return std::unique_ptr<Service>(new Service(std::move(impl)));
}

Service::~Service() {
  stop(false);
}

Result<uint64_t> Service::submit(ServiceRequest request, std::shared_ptr<AnswerSink> sink) {
  const int context = impl_->runner.context();
  CALLA_TRY(check_options(request.options));
  CALLA_TRY(check_prompt(request.prompt.size(), context));
  const int vocab = impl_->runner.config().vocab;
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= vocab) return invalid(fmt::format("token id {} is outside the vocabulary of {}", id, vocab));
  }
  auto job = std::make_unique<Job>();
  const int64_t end = request.options.max_tokens == 0
                          ? context
                          : std::min<int64_t>(context, int64_t(request.prompt.size()) + request.options.max_tokens);
  job->pages = static_cast<int>((end + kPage - 1) / kPage);
  job->request = std::move(request);
  job->sink = std::move(sink);
  const std::lock_guard lock(impl_->mutex);
  if (impl_->stopping || static_cast<int>(impl_->waiting.size()) >= impl_->options.queue) {
    ++impl_->totals.refused;
    return fail(Error::Code::kBusy, impl_->stopping ? "the server is shutting down"
                                                    : fmt::format("{} requests are waiting already: try again later",
                                                                  impl_->waiting.size()));
  }
  ++impl_->totals.requests;
  job->ticket = ++impl_->last_ticket;
  impl_->waiting.push_back(std::move(job));
  impl_->wake.notify_one();
  return impl_->last_ticket;
}

void Service::cancel(uint64_t ticket) {
  const std::lock_guard lock(impl_->mutex);
  impl_->cancels.push_back(ticket);
  impl_->wake.notify_one();
}

ServiceStats Service::stats() const {
  const std::lock_guard lock(impl_->mutex);
  ServiceStats out = impl_->totals;
  out.queued = static_cast<int>(impl_->waiting.size());
  return out;
}

void Service::stop(bool finish_running) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->finishing = finish_running;
    impl_->wake.notify_one();
  }
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace calla
