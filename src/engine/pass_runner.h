#pragma once

// The runner of every backend: cuts what is asked for into passes, and keeps sequences, marks and rollback. A backend B
// (engine/host_backend.h, engine/cuda_runner.cc) has the memory of states and runs a pass.
//
// B::State is one sequence's state, with reserve, truncate, fork, assign, keep, restore and clear as HostState has
// them. B::start() makes an empty one. B::run(batch) runs one pass; then B::logits(i) is row i of what was wanted,
// B::Real each, one row after another, until the next pass. B::write and B::read put a state into a file and back. What
// can run out of memory returns a Result.

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
#include "model/state.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace calla {

// What a runner owns besides its backend.
struct RunnerModel {
  Checkpoint checkpoint;
  Weights weights;
  std::unique_ptr<Pool> pool;
};

template <class B>
class PassRunner final : public Runner {
 public:
  using State = typename B::State;
  using Kept = typename State::Kept;

  PassRunner(std::unique_ptr<RunnerModel> model, std::unique_ptr<B> backend, const RunnerOptions& options,
             const MemoryPlan& plan)
      : model_(std::move(model)), backend_(std::move(backend)), options_(options), plan_(plan) {
    ids_.reserve(options.chunk);
    runs_.reserve(options.chunk);
    wanted_.reserve(backend_->max_logits());
    pieces_.reserve(options.chunk);
  }

  static constexpr size_t kMarks = 4;  // that a sequence keeps

  const ModelConfig& config() const override { return model_->weights.config; }
  int context() const override { return options_.context; }
  int chunk() const override { return options_.chunk; }
  PageUse pages() const override { return backend_->pages(); }
  size_t state_bytes() const override { return backend_->state_bytes(); }
  const MemoryPlan& plan() const override { return plan_; }

  Result<std::unique_ptr<Sequence>> start() override {
    CALLA_ASSIGN(State state, backend_->start());
    return std::make_unique<Own>(std::move(state));
  }

  using Runner::forward;
  Result<std::span<float>> forward(std::span<const Step> steps, Progress progress, void* ctx) override {
    CALLA_TRY(check(steps));
    CALLA_TRY(reserve(steps));
    size_t rows = 0;
    cursors_.clear();
    for (const Step& step : steps) {
      cursors_.push_back({0, rows});
      rows += logit_rows(step);
    }
    std::span<float> logits;
    int done = 0;
    while (plan_pass(steps)) {
      CALLA_TRY(run_pass(steps));
      if (!wanted_.empty()) logits = take_logits(rows);
      done += static_cast<int>(ids_.size());
      if (progress != nullptr && !progress(ctx, done)) return fail(Error::Code::kCancelled, "cancelled");
    }
    return logits;
  }

  Result<std::unique_ptr<Sequence>> fork(const Sequence& sequence) override {
    CALLA_ASSIGN(State state, own(sequence).state.fork());
    auto copy = std::make_unique<Own>(std::move(state));
    copy->append(sequence.tokens());
    copy->marks = own(sequence).marks;
    return copy;
  }

  Result<void> restore(Sequence& sequence, const Sequence& snapshot) override {
    if (&sequence == &snapshot) return {};
    Own& s = own(sequence);
    CALLA_TRY(s.state.assign(own(snapshot).state));
    s.cut(0);
    s.append(snapshot.tokens());
    s.marks = own(snapshot).marks;
    return {};
  }

  Result<void> mark(Sequence& sequence) override {
    auto& marks = own(sequence).marks;
    CALLA_ASSIGN(Kept kept, own(sequence).state.keep());
    std::erase_if(marks, [&](const auto& m) { return m->position == sequence.position(); });
    if (marks.size() == kMarks) marks.erase(marks.begin());
    marks.push_back(std::make_shared<Mark>(Mark{sequence.position(), std::move(kept)}));
    return {};
  }

  Result<void> rollback(Sequence& sequence, int count) override {
    if (count < 0 || count > sequence.position()) {
      return invalid(fmt::format("cannot take {} tokens back from a sequence of {}", count, sequence.position()));
    }
    if (count == 0) return {};
    Own& s = own(sequence);
    const int target = s.position() - count;
    while (!s.marks.empty() && s.marks.back()->position > target) s.marks.pop_back();
    const int from = s.marks.empty() ? 0 : s.marks.back()->position;
    if (!s.state.reserve(from, target)) return no_pages();
    if (s.marks.empty()) {
      s.state.clear();
    } else {
      s.state.restore(s.marks.back()->kept);
    }
    const std::vector<int32_t> again(s.tokens().begin() + from, s.tokens().begin() + target);
    s.cut(from);
    s.state.truncate(target);
    if (again.empty()) return {};
    const Step step{&s, again, Step::Logits::kNone};
    CALLA_TRY(forward({&step, 1}, nullptr, nullptr));
    return {};
  }

  Result<void> save(const Sequence& sequence, const std::filesystem::path& path) const override {
    return backend_->write(path, model_->checkpoint, sequence.tokens(), own(sequence).state);
  }

  Result<std::unique_ptr<Sequence>> load(const std::filesystem::path& path) override {
    CALLA_ASSIGN(State state, backend_->start());
    CALLA_ASSIGN(const StateFile file, StateFile::open(path, model_->checkpoint));
    const int count = static_cast<int>(file.tokens().size());
    if (count > options_.context) {
      return invalid(
          fmt::format("{} holds {} tokens, more than the context of {}", path.string(), count, options_.context));
    }
    CALLA_TRY(file.verify());
    if (!state.reserve(0, count)) return no_pages();
    CALLA_TRY(backend_->read(file, state));
    auto s = std::make_unique<Own>(std::move(state));
    s->append(file.tokens());
    return s;
  }

  Result<std::vector<int32_t>> saved_tokens(const std::filesystem::path& path) const override {
    CALLA_ASSIGN(const StateFile file, StateFile::open(path, model_->checkpoint));
    return file.tokens();
  }

  std::string state_version() const override {
    return fmt::format("{}-{}-{}", fingerprint(model_->checkpoint).substr(0, 16),
                       dtype_name(dtype_of<typename B::Kv>()), dtype_name(dtype_of<typename B::Real>()));
  }

 private:
  struct Mark {
    int position;
    Kept kept;
  };
  struct Own final : Sequence {
    explicit Own(State s) : state(std::move(s)) {}
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

  static Own& own(Sequence& s) { return static_cast<Own&>(s); }
  static const Own& own(const Sequence& s) { return static_cast<const Own&>(s); }

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
    size_t rows = options_.chunk, logits = backend_->max_logits();
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

  Result<void> run_pass(std::span<const Step> steps) {
    ids_.clear();
    runs_.clear();
    wanted_.clear();
    for (const Piece& piece : pieces_) {
      const auto tokens = steps[piece.step].tokens.subspan(cursors_[piece.step].done, piece.count);
      Own& s = own(*steps[piece.step].sequence);
      const int row = static_cast<int>(ids_.size());
      runs_.push_back({&s.state, row, piece.count, s.position()});
      ids_.insert(ids_.end(), tokens.begin(), tokens.end());
      for (int r = piece.count - piece.wanted; r < piece.count; ++r) wanted_.push_back(row + r);
    }
    CALLA_TRY(backend_->run(Batch<State>{ids_, runs_, wanted_}));

    for (const Piece& piece : pieces_) {
      Cursor& cursor = cursors_[piece.step];
      own(*steps[piece.step].sequence).append(steps[piece.step].tokens.subspan(cursor.done, piece.count));
      cursor.done += piece.count;
    }
    return {};
  }

  // The logits of the pass that ran: where the backend has them if they are all of the call's `rows`, else put beside
  // those of its other passes.
  std::span<float> take_logits(size_t rows) {
    const size_t vocab = config().vocab;
    if constexpr (std::is_same_v<typename B::Real, float>) {
      if (wanted_.size() == rows) return {backend_->logits(0).data(), rows * vocab};
    }
    gathered_.resize(rows * vocab);
    int row = 0;
    for (const Piece& piece : pieces_) {
      for (int r = 0; r < piece.wanted; ++r, ++row) {
        std::ranges::transform(backend_->logits(row), gathered_.data() + cursors_[piece.step].logit_row++ * vocab,
                               [](auto v) { return static_cast<float>(v); });
      }
    }
    return gathered_;
  }

  std::unique_ptr<RunnerModel> model_;
  std::unique_ptr<B> backend_;
  RunnerOptions options_;
  MemoryPlan plan_;
  std::vector<int32_t> ids_, wanted_;
  std::vector<Run<State>> runs_;
  std::vector<Piece> pieces_;
  std::vector<Cursor> cursors_;
  std::vector<float> gathered_;
};

}  // namespace calla
