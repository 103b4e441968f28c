#pragma once

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "engine/runner.h"
#include "engine/state_file.h"
#include "model/forward.h"
#include "model/scratch.h"
#include "model/state.h"

namespace calla {

// Pages that a runner's pool holds: whole contexts, and one page a sequence for what is copied before it is written.
inline int page_limit(const RunnerOptions& options) {
  return ((options.context + kPage - 1) / kPage + 1) * options.sequences;
}

// Activations and states in host memory: O is CpuOps or ReferenceOps. What PassRunner asks of a backend.
template <Ops O>
class HostBackend {
 public:
  using State = typename O::State;
  using Real = typename O::Real;
  using Kv = std::remove_pointer_t<decltype(std::declval<const State&>().kv(0, 0, 0, 0))>;

  // The weights must outlive this.
  HostBackend(const Weights& weights, std::unique_ptr<O> op, const RunnerOptions& options)
      : weights_(weights),
        op_(std::move(op)),
        shape_(weights.config),
        pool_(shape_.page_size(), page_limit(options)),
        scratch_(weights.config, options.chunk, std::min(options.chunk, options.logit_rows)) {}
  // What the constructor allocates besides pages.
  static size_t scratch_bytes(const ModelConfig& c, const RunnerOptions& o) {
    return HostScratch<Real>::bytes(c, o.chunk, std::min(o.chunk, o.logit_rows));
  }

  int max_logits() const { return scratch_.max_logits(); }
  PageUse pages() const { return {pool_.used(), pool_.limit(), pool_.page_size() * sizeof(Kv)}; }
  size_t state_bytes() const { return (shape_.recurrent_size() + shape_.window_size()) * sizeof(Real); }
  Result<State> start() { return State(shape_, pool_); }

  Result<void> run(const Batch<State>& batch) {
    scratch_.resize(static_cast<int>(batch.ids.size()), static_cast<int>(batch.wanted.size()));
    forward(*op_, weights_, batch, scratch_);
    return {};
  }
  std::span<Real> logits(int row) const { return scratch_.logits[row]; }

  Result<void> write(const std::filesystem::path& path, const Checkpoint& checkpoint, std::span<const int32_t> tokens,
                     const State& state) const {
    return write_state_file(path, checkpoint, tokens, state);
  }
  Result<void> read(const StateFile& file, State& state) const { return file.read(state); }

 private:
  const Weights& weights_;
  std::unique_ptr<O> op_;
  StateShape shape_;
  PagePool<Kv> pool_;
  HostScratch<Real> scratch_;
};

}  // namespace calla
