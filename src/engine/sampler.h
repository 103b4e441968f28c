#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/result.h"

namespace calla {

// How the next token is chosen. The steps, in this order:
//
//   1. repetition penalty          l > 0 ? l / r : l · r, once for each token of the prompt or the answer (Hugging
//   Face's rule)
//   2. frequency, presence         l − f·count − p·[count > 0], counting the answer only (OpenAI's and vLLM's rule)
//   3. bias                        l + b, last so that a bias means what it says
//   4. temperature                 l / T; below 1e-5 the choice is greedy and steps 5 to 7 do nothing (vLLM's limit)
//   5. top_k                       exactly the k best; ties go to the lower id
//   6. top_p                       the fewest best tokens whose probability, among those of step 5, reaches p
//   7. min_p                       tokens whose probability is at least min_p times the best one's
//
// The order of 4 to 7 is that of Hugging Face transformers (vLLM applies min_p before top_k and top_p).
struct SamplingParams {
  float temperature = 1.0f;                     // 0 to 100
  int top_k = 0;                                // 0: no limit
  float top_p = 1.0f;                           // above 0, to 1
  float min_p = 0.0f;                           // 0 to below 1
  float presence_penalty = 0.0f;                // -2 to 2
  float frequency_penalty = 0.0f;               // -2 to 2
  float repetition_penalty = 1.0f;              // 0.01 to 100; 1 is off
  std::vector<std::pair<int32_t, float>> bias;  // token id, -100 to 100
  std::optional<uint64_t> seed;                 // absent: from the system's random device
  int logprobs = -1;                            // -1: none; n ≥ 0: of the chosen token and of the n likeliest, to 100
};

// An error names the first field that is out of range. NaN is out of every range.
Result<void> check_sampling(const SamplingParams& params);

// A token with its log-probability: the log-softmax of the model's own logits, before penalties, bias and temperature
// (vLLM's "raw_logprobs"), over the ids that have a token.
struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;
};

struct Sampled {
  int32_t id = -1;
  float logprob = 0;              // if SamplingParams::logprobs ≥ 0
  std::vector<TokenLogprob> top;  // likeliest first; ties by id
};

// Chooses tokens for one answer. Takes exactly one random number for each token that is not chosen greedily, and its
// own exponential function, so that the same logits and seed give the same tokens on every machine. Not thread-safe;
// one for each answer.
class Sampler {
 public:
  // tokens: ids at and above it are padding of the vocabulary and never chosen. REQUIRES: check_sampling(params),
  // tokens > 0.
  Sampler(const SamplingParams& params, int tokens, std::span<const int32_t> prompt);

  // Chooses from one row of logits and counts the choice as part of the answer. The row may be changed meanwhile, but
  // is whole again on return. −inf means "never". An error: NaN or +inf among the logits, or nothing that can be
  // chosen. Allocates nothing, unless log-probabilities were asked for. REQUIRES: size ≥ tokens.
  //
  // allowed: bit id % 64 of word id / 64 says whether an id may be chosen, as if the logits of all others were −inf;
  // empty: all may. REQUIRES: empty or a bit for each of the tokens.
  Result<Sampled> sample(std::span<float> logits, std::span<const uint64_t> allowed = {});
  // Counts `id` as the choice, whatever the logits say. Takes no random number. An error as above.
  Result<Sampled> force(std::span<float> logits, int32_t id);

  uint64_t seed() const { return seed_; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
    double weight;  // exp((logit − best) / T)
  };
  struct Best {
    float logit;
    int32_t id;
  };
  static bool better(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }

  Result<int32_t> choose(std::span<float> logits);
  Result<Sampled> count(std::span<const float> logits, int32_t id);
  void change(std::span<float> logits);
  void restore(std::span<float> logits);
  Result<Best> scan(std::span<const float> logits);
  void select_top(std::span<const float> logits, int k);
  double select_nucleus(std::span<const float> logits, float best);
  void select_all(std::span<const float> logits, float best);
  int32_t draw(std::span<const float> logits, float best);
  Result<void> add_logprobs(std::span<const float> logits, Sampled& out);

  SamplingParams params_;
  int tokens_;
  uint64_t seed_;
  Random random_;
  bool greedy_;
  bool penalties_;
  std::vector<uint32_t> count_;                     // [tokens] in the answer; only with penalties
  std::vector<bool> known_;                         // [tokens] in the prompt or the answer; only with penalties
  std::vector<int32_t> known_ids_;                  // the ids of known_, once each
  std::vector<std::pair<int32_t, float>> changed_;  // what change() overwrote
  std::vector<float> masked_;      // [tokens] the row with −inf where a mask forbids; only with masks
  std::vector<float> block_best_;  // the best logit of each 64
  std::vector<float> block_order_;
  std::vector<Candidate> candidates_;
};

}  // namespace calla
