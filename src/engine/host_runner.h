#pragma once

// The runner of every backend whose activations and states are in host memory: O is CpuOps or ReferenceOps.

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/pool.h"
#include "engine/runner.h"
#include "engine/state_file.h"
#include "model/forward.h"
#include "model/scratch.h"
#include "model/state.h"
#include "model/weights.h"

namespace calla {

// What a runner owns besides its verbs.
struct RunnerModel {
  Checkpoint checkpoint;
  Weights weights;
  std::unique_ptr<Pool> pool;
};

template <Ops O>
class HostRunner final : public Runner {
 public:
  using State = typename O::State;
  using Real = typename O::Real;
  using Kv = std::remove_pointer_t<decltype(std::declval<const State&>().kv(0, 0, 0, 0))>;

  HostRunner(std::unique_ptr<RunnerModel> model, std::unique_ptr<O> op, const RunnerOptions& options)
      : model_(std::move(model)),
        op_(std::move(op)),
        options_(options),
        shape_(config()),
        pool_(shape_.page_size(), page_limit(options)),
        scratch_(config(), options.chunk, std::min(options.chunk, options.logit_rows)) {
    ids_.reserve(options.chunk);
    runs_.reserve(options.chunk);
    wanted_.reserve(scratch_.max_logits());
    pieces_.reserve(options.chunk);
  }

  static constexpr size_t kMarks = 4;  // that a sequence keeps
  static int page_limit(const RunnerOptions& options) {
    return ((options.context + kPage - 1) / kPage + 1) * options.sequences;
  }

  const ModelConfig& config() const override { return model_->weights.config; }
  int context() const override { return options_.context; }
  int chunk() const override { return options_.chunk; }
  PageUse pages() const override { return {pool_.used(), page_limit(options_), pool_.page_size() * sizeof(Kv)}; }
  size_t state_bytes() const override {
    return (shape_.recurrent_size() + shape_.window_size()) * sizeof(typename O::Real);
  }

  Result<std::unique_ptr<Sequence>> start() override { return std::make_unique<HostSequence>(shape_, pool_); }

  Result<void> forward(std::span<const Step> steps, std::vector<float>& logits, Progress progress, void* ctx) override {
    CALLA_TRY(check(steps));
    CALLA_TRY(reserve(steps));
    size_t rows = 0;
    cursors_.clear();
    for (const Step& step : steps) {
      cursors_.push_back({0, rows});
      rows += logit_rows(step);
    }
    logits.resize(rows * config().vocab);
    int done = 0;
    while (plan_pass(steps)) {
      run_pass(steps, logits);
      done += static_cast<int>(ids_.size());
      if (progress != nullptr && !progress(ctx, done)) return fail(Error::Code::kCancelled, "cancelled");
    }
    return {};
  }

  Result<std::unique_ptr<Sequence>> fork(const Sequence& sequence) override {
    return std::make_unique<HostSequence>(own(sequence));
  }

  Result<void> restore(Sequence& sequence, const Sequence& snapshot) override {
    if (&sequence != &snapshot) own(sequence) = own(snapshot);
    return {};
  }

  Result<void> mark(Sequence& sequence) override {
    auto& marks = own(sequence).marks;
    std::erase_if(marks, [&](const auto& m) { return m->position == sequence.position(); });
    if (marks.size() == kMarks) marks.erase(marks.begin());
    const State& state = own(sequence).state;
    auto mark =
        std::make_shared<Mark>(Mark{sequence.position(), copy(state.recurrent_all()), copy(state.window_all())});
    marks.push_back(std::move(mark));
    return {};
  }

  Result<void> rollback(Sequence& sequence, int count) override {
    if (count < 0 || count > sequence.position()) {
      return invalid(fmt::format("cannot take {} tokens back from a sequence of {}", count, sequence.position()));
    }
    if (count == 0) return {};
    HostSequence& s = own(sequence);
    const int target = s.position() - count;
    while (!s.marks.empty() && s.marks.back()->position > target) s.marks.pop_back();
    const int from = s.marks.empty() ? 0 : s.marks.back()->position;
    if (!s.state.reserve(from, target)) return no_pages();
    if (s.marks.empty()) {
      std::ranges::fill(s.state.recurrent_all(), Real{0});
      std::ranges::fill(s.state.window_all(), Real{0});
    } else {
      std::ranges::copy(s.marks.back()->recurrent, s.state.recurrent_all().begin());
      std::ranges::copy(s.marks.back()->window, s.state.window_all().begin());
    }
    const std::vector<int32_t> again(s.tokens().begin() + from, s.tokens().begin() + target);
    s.cut(from);
    s.state.truncate(target);
    if (again.empty()) return {};
    const Step step{&s, again, Step::Logits::kNone};
    std::vector<float> none;
    return forward({&step, 1}, none, nullptr, nullptr);
  }

  Result<void> save(const Sequence& sequence, const std::filesystem::path& path) const override {
    const HostSequence& s = own(sequence);
    return write_state_file(path, model_->checkpoint, s.tokens(), s.state);
  }

  Result<std::unique_ptr<Sequence>> load(const std::filesystem::path& path) override {
    auto s = std::make_unique<HostSequence>(shape_, pool_);
    CALLA_ASSIGN(const StateFile file, StateFile::open(path, model_->checkpoint));
    const int count = static_cast<int>(file.tokens().size());
    if (count > options_.context) {
      return invalid(
          fmt::format("{} holds {} tokens, more than the context of {}", path.string(), count, options_.context));
    }
    CALLA_TRY(file.verify());
    if (!s->state.reserve(0, count)) return no_pages();
    CALLA_TRY(file.read(s->state));
    s->append(file.tokens());
    return s;
  }

  Result<std::vector<int32_t>> saved_tokens(const std::filesystem::path& path) const override {
    CALLA_ASSIGN(const StateFile file, StateFile::open(path, model_->checkpoint));
    return file.tokens();
  }

  std::string state_version() const override {
    return fmt::format("{}-{}-{}", fingerprint(model_->checkpoint).substr(0, 16), dtype_name(dtype_of<Kv>()),
                       dtype_name(dtype_of<Real>()));
  }

 private:
  struct Mark {
    int position;
    Buffer<Real> recurrent, window;
  };
  struct HostSequence final : Sequence {
    HostSequence(const StateShape& shape, PagePool<Kv>& pool) : state(shape, pool) {}
    // Room for positions [begin, end): all that a step allocates, and only where a page begins. False: no page is left.
    bool reserve(int begin, int end) {
      if (!state.reserve(begin, end)) return false;
      if (static_cast<size_t>(end) > tokens_.capacity()) tokens_.reserve((end + kPage - 1) / kPage * kPage);
      return true;
    }
    void append(std::span<const int32_t> tokens) { tokens_.insert(tokens_.end(), tokens.begin(), tokens.end()); }
    void cut(int position) { tokens_.resize(position); }
    State state;
    std::vector<std::shared_ptr<const Mark>> marks;  // ascending positions; forks share them
  };
  // Where a step stands: tokens of it that are done, and the row of `logits` that its next logits go to.
  struct Cursor {
    size_t done;
    size_t logit_row;
  };
  // Rows of a pass that belong to one step.
  struct Piece {
    size_t step;
    int count;
    int wanted;
  };

  static HostSequence& own(Sequence& s) { return static_cast<HostSequence&>(s); }
  static const HostSequence& own(const Sequence& s) { return static_cast<const HostSequence&>(s); }

  static Buffer<Real> copy(const Buffer<Real>& from) {
    Buffer<Real> to(from.size());
    std::ranges::copy(from, to.begin());
    return to;
  }

  static size_t logit_rows(const Step& step) {
    switch (step.logits) {
      case Step::Logits::kNone:
        return 0;
      case Step::Logits::kLast:
        return step.tokens.empty() ? 0 : 1;
      case Step::Logits::kAll:
        return step.tokens.size();
    }
    return 0;
  }

  Result<void> check(std::span<const Step> steps) const {
    for (const Step& step : steps) {
      for (const Step& other : steps) {
        if (&step != &other && step.sequence == other.sequence) return invalid("a sequence appears twice in one call");
      }
      for (const int32_t id : step.tokens) {
        if (id < 0 || id >= config().vocab) {
          return invalid(fmt::format("token id {} is outside the vocabulary of {}", id, config().vocab));
        }
      }
      const size_t end = step.sequence->position() + step.tokens.size();
      if (end > static_cast<size_t>(options_.context)) {
        return invalid(fmt::format("{} tokens do not fit in the context of {}", end, options_.context));
      }
    }
    return {};
  }

  Result<void> reserve(std::span<const Step> steps) {
    for (const Step& step : steps) {
      const int begin = step.sequence->position(), end = begin + static_cast<int>(step.tokens.size());
      if (own(*step.sequence).reserve(begin, end)) continue;
      for (const Step& done : steps) own(*done.sequence).state.truncate(done.sequence->position());
      return no_pages();
    }
    return {};
  }

  static tl::unexpected<Error> no_pages() {
    return fail(Error::Code::kMemory, "no memory is left for keys and values: all pages of the pool are in use");
  }

  // Chooses the rows of the next pass: steps in order, each as far as rows and logit rows allow. False: all is done.
  bool plan_pass(std::span<const Step> steps) {
    pieces_.clear();
    size_t rows = scratch_.max_rows(), logits = scratch_.max_logits();
    for (size_t i = 0; i < steps.size() && rows > 0; ++i) {
      const size_t left = steps[i].tokens.size() - cursors_[i].done;
      size_t count = std::min(left, rows);
      if (steps[i].logits == Step::Logits::kAll) count = std::min(count, logits);
      if (steps[i].logits == Step::Logits::kLast && logits == 0 && count == left) --count;
      if (count == 0) continue;
      const bool last = steps[i].logits == Step::Logits::kLast && count == left;
      const size_t wanted = steps[i].logits == Step::Logits::kAll ? count : last ? 1 : 0;
      pieces_.push_back({i, static_cast<int>(count), static_cast<int>(wanted)});
      rows -= count;
      logits -= wanted;
    }
    return !pieces_.empty();
  }

  void run_pass(std::span<const Step> steps, std::vector<float>& logits) {
    ids_.clear();
    runs_.clear();
    wanted_.clear();
    for (const Piece& piece : pieces_) {
      const auto tokens = steps[piece.step].tokens.subspan(cursors_[piece.step].done, piece.count);
      HostSequence& s = own(*steps[piece.step].sequence);
      const int row = static_cast<int>(ids_.size());
      runs_.push_back({&s.state, row, piece.count, s.position()});
      ids_.insert(ids_.end(), tokens.begin(), tokens.end());
      for (int r = piece.count - piece.wanted; r < piece.count; ++r) wanted_.push_back(row + r);
    }
    scratch_.resize(static_cast<int>(ids_.size()), static_cast<int>(wanted_.size()));
    calla::forward(*op_, model_->weights, Batch<State>{ids_, runs_, wanted_}, scratch_);

    int row = 0;
    for (const Piece& piece : pieces_) {
      Cursor& cursor = cursors_[piece.step];
      own(*steps[piece.step].sequence).append(steps[piece.step].tokens.subspan(cursor.done, piece.count));
      cursor.done += piece.count;
      for (int r = 0; r < piece.wanted; ++r, ++row) {
        const auto from = scratch_.logits[row];
        std::ranges::transform(from, logits.data() + cursor.logit_row++ * from.size(),
                               [](Real v) { return static_cast<float>(v); });
      }
    }
  }

  std::unique_ptr<RunnerModel> model_;
  std::unique_ptr<O> op_;
  RunnerOptions options_;
  StateShape shape_;
  PagePool<Kv> pool_;
  HostScratch<Real> scratch_;
  std::vector<int32_t> ids_, wanted_;
  std::vector<Run<State>> runs_;
  std::vector<Piece> pieces_;
  std::vector<Cursor> cursors_;
};

}  // namespace calla
