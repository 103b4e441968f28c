#include "engine/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/answer.h"
#include "model/state.h"

namespace calla {
namespace {

// A prompt that was passed over this often in favour of shorter ones is read next.
constexpr int kPatience = 8;

struct Job {
  uint64_t ticket = 0;
  ServiceRequest request;
  std::shared_ptr<AnswerSink> sink;
  int pages = 0;  // reserved for it
  // From when its turn has come:
  std::unique_ptr<Sequence> sequence;
  std::optional<Answer> answer;
  bool decoding = false;  // the prompt is read
  int32_t token = 0;      // of the answer, to be fed next
  int passed_over = 0;

  int prompt_size() const { return static_cast<int>(request.prompt.size()); }
  int unread() const { return prompt_size() - sequence->position(); }
};

Generation cancelled_generation(const ServiceRequest& request) {
  Generation out;
  out.finish = FinishReason::kCancelled;
  out.prompt_tokens = static_cast<int>(request.prompt.size());
  return out;
}

Result<void> check(const ServiceOptions& o) {
  if (o.running < 1 || o.running > 4096) return invalid(fmt::format("{} sequences: expected 1 to 4096", o.running));
  if (o.queue < 0) return invalid(fmt::format("a queue of {}: expected 0 or more", o.queue));
  if (o.chunk < 1 || o.shared_chunk < 1) {
    return invalid(fmt::format("chunks of {} and {} rows: expected 1 or more", o.chunk, o.shared_chunk));
  }
  return {};
}

}  // namespace

struct Service::Impl {
  Impl(Model& m, ServiceOptions o) : model(m), runner(m.runner()), options(std::move(o)) {
    thread = std::thread([this] { run(); });
  }

  void run();
  bool take_orders();
  void admit();
  void pass();
  void plan();
  void begin(Job& job);
  bool advance(Job& job, std::span<float> logits);
  bool choose(Job& job, std::span<float> logits);
  void finish(Job& job, Result<Generation> result);
  template <class Predicate>
  void cancel_if(const Predicate& wanted);

  Model& model;
  Runner& runner;
  const ServiceOptions options;

  // Of the service's thread alone.
  std::vector<std::unique_ptr<Job>> running;
  int reserved = 0;  // pages, of all that run
  std::vector<Step> steps;
  std::vector<Job*> stepping;  // the job of each step
  std::vector<Job*> reading;
  std::vector<float> logits;

  mutable std::mutex mutex;
  // Guarded by the mutex.
  std::condition_variable wake;
  std::deque<std::unique_ptr<Job>> waiting;
  std::vector<uint64_t> cancels;
  bool stopping = false, finishing = false;
  uint64_t last_ticket = 0;
  ServiceStats totals;

  std::thread thread;
};

void Service::Impl::run() {
  while (take_orders()) {
    admit();
    if (!running.empty()) pass();
  }
}

// Waits for something to do; cancels what is to be cancelled. False: the service ends.
bool Service::Impl::take_orders() {
  std::vector<uint64_t> tickets;
  bool end = false, all = false;
  std::deque<std::unique_ptr<Job>> dropped;
  {
    std::unique_lock lock(mutex);
    totals.running = static_cast<int>(running.size());
    wake.wait(lock, [&] { return stopping || !cancels.empty() || !waiting.empty() || !running.empty(); });
    tickets.swap(cancels);
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
    job = nullptr;
  }
  std::erase(running, nullptr);
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
    }
    if (!job->sink->wanted()) {
      finish(*job, cancelled_generation(job->request));
      continue;
    }
    reserved += job->pages;
    job->sequence = nullptr;
    running.push_back(std::move(job));
  }
}

// Gives a job its sequence.
void Service::Impl::begin(Job& job) {
  job.sequence = std::move(runner.start()).value();
  const AnswerRules rules{job.request.grammar, job.request.in_reasoning, job.request.thinking_budget};
  job.answer.emplace(model, job.request.prompt, job.request.options, rules, [sink = job.sink](const Delta& d) {
    sink->on_delta(d);
    return true;
  });
}

// The steps of the next pass: one token of each answer, then prompts, the ones with the least left first.
void Service::Impl::plan() {
  steps.clear();
  stepping.clear();
  reading.clear();
  for (const auto& job : running) {
    if (!job->sequence) begin(*job);
    if (!job->decoding) {
      reading.push_back(job.get());
      continue;
    }
    steps.push_back({job->sequence.get(), {&job->token, 1}, Step::Logits::kLast});
    stepping.push_back(job.get());
  }
  int rows = steps.empty() ? options.chunk : options.shared_chunk;
  std::ranges::stable_sort(reading, {},
                           [](const Job* job) { return std::pair(job->passed_over < kPatience, job->unread()); });
  for (Job* job : reading) {
    const int count = std::min(rows, job->unread());
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
  const Result<void> result = runner.forward(steps, logits);
  const auto vocab = static_cast<size_t>(runner.config().vocab);
  size_t row = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    Job& job = *stepping[i];
    if (!result) {
      finish(job, tl::unexpected<Error>(result.error()));
      job.sequence = nullptr;
      continue;
    }
    std::span<float> own;
    if (steps[i].logits == Step::Logits::kLast) own = std::span(logits).subspan(row++ * vocab, vocab);
    if (!advance(job, own)) job.sequence = nullptr;
  }
  std::erase_if(running, [](const auto& job) { return job->sequence == nullptr; });
}

// What a pass brought a job. False: it has ended.
bool Service::Impl::advance(Job& job, std::span<float> own) {
  if (job.decoding) return choose(job, own);
  job.sink->on_prompt(job.sequence->position(), job.prompt_size(), 0);
  if (job.unread() > 0) return true;
  job.answer->prompt_read();
  job.decoding = true;
  return choose(job, own);
}

bool Service::Impl::choose(Job& job, std::span<float> own) {
  const Result<bool> more = job.answer->next(own);
  if (!more) {
    finish(job, tl::unexpected<Error>(more.error()));
    return false;
  }
  job.token = job.answer->token();
  if (!*more) finish(job, std::move(job.answer->generation()));
  return *more;
}

// Of a job that runs or waits; its owner forgets it afterwards.
void Service::Impl::finish(Job& job, Result<Generation> result) {
  if (job.sequence) reserved -= job.pages;
  {
    const std::lock_guard lock(mutex);
    if (!result) {
      ++totals.failed;
    } else {
      ++(result->finish == FinishReason::kCancelled ? totals.cancelled : totals.finished);
      totals.answer_tokens += result->tokens.size();
      totals.cached_tokens += result->reused_tokens;
    }
  }
  job.sink->on_done(std::move(result));
}

Service::Service(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Service>> Service::start(Model& model, ServiceOptions options) {
  CALLA_TRY(check(options));
  return std::unique_ptr<Service>(new Service(std::make_unique<Impl>(model, std::move(options))));
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
  impl_->totals.prompt_tokens += job->request.prompt.size();
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
