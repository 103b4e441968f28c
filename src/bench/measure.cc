#include "bench/measure.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/clock.h"

namespace calla {
namespace {

class RowMeter {
 public:
  RowMeter(Runner& runner, const BenchRow& row, const MeasureOptions& options)
      : runner_(runner),
        row_(row),
        options_(options),
        prompt_(bench_prompt(runner.config().vocab, row.depth + row.prompt)) {}

  Result<BenchRound> round() {
    const auto start = Clock::now();
    if (sequence_ == nullptr || row_.depth == 0) CALLA_TRY(prepare());
    BenchRound round;
    std::vector<int32_t> ids;

    const auto prompt_energy = energy();
    const auto prompt_start = Clock::now();
    CALLA_TRY(feed(std::span(prompt_).subspan(row_.depth), Step::Logits::kLast));
    round.prefill_seconds = seconds_since(prompt_start);
    ids.push_back(likeliest());
    round.first_token_seconds = seconds_since(row_.depth == 0 ? start : prompt_start);
    round.prefill_joules = joules_since(prompt_energy);
    round.prefill_verbs = take_profile();
    if (row_.depth > 0) CALLA_TRY(runner_.rollback(*sequence_, row_.prompt));

    const auto decode_energy = energy();
    const auto decode_start = Clock::now();
    for (int i = 0; i < row_.steps; ++i) {
      const int32_t last = ids.back();
      CALLA_TRY(feed({&last, 1}, Step::Logits::kLast));
      ids.push_back(likeliest());
    }
    round.decode_seconds = seconds_since(decode_start);
    round.decode_joules = joules_since(decode_energy);
    round.decode_verbs = take_profile();
    if (row_.depth > 0) CALLA_TRY(runner_.rollback(*sequence_, row_.steps));

    round.digest = token_digest(ids);
    round.memory = process_memory();
    return round;
  }

 private:
  // A new sequence, filled up to the depth.
  Result<void> prepare() {
    sequence_.reset();  // its pages are needed again
    CALLA_ASSIGN(sequence_, runner_.start());
    if (row_.depth > 0) {
      CALLA_TRY(feed(std::span(prompt_).first(row_.depth), Step::Logits::kNone));
      CALLA_TRY(runner_.mark(*sequence_));
    }
    take_profile();
    return {};
  }

  Result<void> feed(std::span<const int32_t> tokens, Step::Logits wanted) {
    const Step step{sequence_.get(), tokens, wanted};
    const auto report = [](void* self, int done) {
      const RowMeter& m = *static_cast<RowMeter*>(self);
      return !m.options_.on_tokens || m.options_.on_tokens(m.done_ + done);
    };
    CALLA_ASSIGN(logits_, runner_.forward({&step, 1}, report, this));
    done_ += static_cast<int>(tokens.size());
    return {};
  }

  // The lowest id of the best logit; in lanes, so that it costs a small part of a GPU's step.
  int32_t likeliest() const {
    constexpr size_t kLanes = 16;
    float best[kLanes];
    std::ranges::fill(best, -INFINITY);
    const size_t whole = logits_.size() / kLanes * kLanes;
    for (size_t i = 0; i < whole; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) best[j] = std::max(best[j], logits_[i + j]);
    }
    float top = *std::ranges::max_element(best);
    for (size_t i = whole; i < logits_.size(); ++i) top = std::max(top, logits_[i]);
    return static_cast<int32_t>(std::ranges::find(logits_, top) - logits_.begin());
  }

  Profile take_profile() { return options_.profile != nullptr ? std::exchange(*options_.profile, {}) : Profile{}; }

  EnergyMeter::Reading energy() const {
    return options_.energy != nullptr ? options_.energy->read() : EnergyMeter::Reading{};
  }
  std::optional<double> joules_since(const EnergyMeter::Reading& start) const {
    return options_.energy != nullptr ? options_.energy->joules(start, options_.energy->read()) : std::nullopt;
  }

  Runner& runner_;
  const BenchRow& row_;
  const MeasureOptions& options_;
  const std::vector<int32_t> prompt_;
  std::unique_ptr<Sequence> sequence_;
  std::span<float> logits_;  // in the runner
  int done_ = 0;
};

}  // namespace

Result<std::vector<BenchRound>> measure(Runner& runner, const BenchRow& row, const MeasureOptions& options) {
  RowMeter meter(runner, row, options);
  std::vector<BenchRound> rounds;
  for (int i = 0; i < options.rounds; ++i) {
    CALLA_ASSIGN(BenchRound round, meter.round());
    rounds.push_back(std::move(round));
  }
  return rounds;
}

}  // namespace calla
