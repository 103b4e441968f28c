#pragma once

// Scores a text: feeds it to a model in windows, and beside it to a reference, and looks at every row of logits once.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/runner.h"
#include "eval/row_score.h"
#include "formats/safetensors.h"

namespace calla {

// Where logits come from: one text, token by token.
class LogitSource {
 public:
  virtual ~LogitSource() = default;
  virtual int vocab() const = 0;
  // Forgets what was fed. The next token is number `position` of the text, and the first that the model sees.
  virtual Result<void> restart(size_t position) = 0;
  // Feeds the next tokens. Where their rows are wanted, the answer is [tokens.size(), vocab], valid until the next
  // call; else it is empty.
  virtual Result<std::span<const float>> feed(std::span<const int32_t> tokens, bool wanted) = 0;
};

// A model. Its context must hold a window.
class RunnerSource final : public LogitSource {
 public:
  explicit RunnerSource(std::unique_ptr<Runner> runner) : runner_(std::move(runner)) {}
  int vocab() const override { return runner_->config().vocab; }
  Result<void> restart(size_t position) override;
  Result<std::span<const float>> feed(std::span<const int32_t> tokens, bool wanted) override;

 private:
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<float> logits_;
};

// Logits that were saved: a safetensors file with "ids", i32 [tokens], and "logits", f32 [tokens, vocab], of one
// sequence from its start.
class SavedLogits final : public LogitSource {
 public:
  // Errors: a tensor that is missing or has another form, an id outside the vocabulary, fewer than two tokens.
  static Result<SavedLogits> open(const std::filesystem::path& path);
  // The same from the tensors of a file, whose bytes must stay; `name` starts every message.
  static Result<SavedLogits> parse(const TensorMap& tensors, std::string_view name);

  const std::vector<int32_t>& ids() const { return ids_; }
  int vocab() const override { return vocab_; }
  Result<void> restart(size_t position) override;
  Result<std::span<const float>> feed(std::span<const int32_t> tokens, bool wanted) override;

 private:
  SafetensorsFile file_;
  std::vector<int32_t> ids_;
  std::span<const std::byte> logits_;  // in the file, any alignment
  int vocab_ = 0;
  size_t position_ = 0;
  std::vector<float> rows_;
};

// A window of a text: tokens [begin, end) are fed to an empty sequence, rows [first, end) are scored, each with the
// token after it.
struct Window {
  size_t begin, first, end;
};

// The windows of a text of `tokens` tokens: at most `window` are fed at once and `stride` rows scored of it, 1 ≤ stride
// ≤ window, so that all but the first rows have at least window − stride tokens before them. The windows score rows 0
// to tokens − 2 once each, in order. No token is put before the text: this model was trained without one at the start
// of texts, so the first token is fed and not predicted.
std::vector<Window> windows(size_t tokens, size_t window, size_t stride);

struct Scoring {
  std::span<const int32_t> ids;
  std::vector<Window> windows;
  size_t rows_at_once = 64;  // of logits in memory
  LogitSource* model = nullptr;
  LogitSource* reference = nullptr;  // may be none; the same vocabulary
};

// Appends the scores of all rows to `scores`, which holds those of an earlier run or none: what belongs to a window
// that is not complete is dropped and done again. `pause` is called whenever some rows were scored; its error ends the
// work.
Result<void> score_text(const Scoring& scoring, std::vector<RowScore>& scores,
                        const std::function<Result<void>()>& pause);

}  // namespace calla
