#include "eval/scoring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace calla {

Result<void> RunnerSource::restart(size_t) {
  sequence_.reset();  // its pages first: the context may have room for one
  CALLA_ASSIGN(sequence_, runner_->start());
  return {};
}

Result<std::span<const float>> RunnerSource::feed(std::span<const int32_t> tokens, bool wanted) {
  const Step step{sequence_.get(), tokens, wanted ? Step::Logits::kAll : Step::Logits::kNone};
  CALLA_TRY(runner_->forward({&step, 1}, logits_));
  return logits_;
}

Result<SavedLogits> SavedLogits::open(const std::filesystem::path& path) {
  CALLA_ASSIGN(SafetensorsFile file, SafetensorsFile::open(path));
  CALLA_ASSIGN(SavedLogits saved, parse(file.tensors(), path.string()));
  saved.file_ = std::move(file);
  return saved;
}

Result<SavedLogits> SavedLogits::parse(const TensorMap& tensors, std::string_view name) {
  const auto find = [&](std::string_view tensor, Dtype dtype, size_t dims) -> Result<const TensorView*> {
    const auto it = tensors.find(tensor);
    if (it == tensors.end()) return invalid(fmt::format("{} has no tensor \"{}\"", name, tensor));
    const TensorView& t = it->second;
    if (t.dtype != dtype || t.shape.size() != dims) {
      return invalid(fmt::format("{}: {} is {} with {} dimensions, expected {} with {}", name, tensor,
                                 dtype_name(t.dtype), t.shape.size(), dtype_name(dtype), dims));
    }
    return &t;
  };
  CALLA_ASSIGN(const TensorView* ids, find("ids", Dtype::kI32, 1));
  CALLA_ASSIGN(const TensorView* logits, find("logits", Dtype::kF32, 2));
  const int64_t rows = logits->shape[0], vocab = logits->shape[1];
  if (ids->shape[0] != rows) {
    return invalid(fmt::format("{} has {} ids and {} rows of logits", name, ids->shape[0], rows));
  }
  if (rows < 2) return invalid(fmt::format("{} has {} tokens, expected at least 2", name, rows));
  if (vocab < 1 || vocab > INT32_MAX) return invalid(fmt::format("{} has a vocabulary of {}", name, vocab));
  SavedLogits saved;
  saved.ids_.resize(static_cast<size_t>(rows));
  std::memcpy(saved.ids_.data(), ids->data.data(), ids->data.size());
  for (const int32_t id : saved.ids_) {
    if (id < 0 || id >= vocab)
      return invalid(fmt::format("{}: token id {} is outside its vocabulary of {}", name, id, vocab));
  }
  saved.logits_ = logits->data;
  saved.vocab_ = static_cast<int>(vocab);
  return saved;
}

Result<void> SavedLogits::restart(size_t position) {
  CHECK(position == 0, "saved logits follow one sequence from its start");
  position_ = 0;
  return {};
}

Result<std::span<const float>> SavedLogits::feed(std::span<const int32_t> tokens, bool wanted) {
  CHECK(position_ + tokens.size() <= ids_.size(), "more tokens than saved rows");
  const size_t first = position_;
  position_ += tokens.size();
  if (!wanted) return std::span<const float>();
  rows_.resize(tokens.size() * vocab_);
  std::memcpy(rows_.data(), logits_.data() + first * vocab_ * sizeof(float), rows_.size() * sizeof(float));
  return rows_;
}

std::vector<Window> windows(size_t tokens, size_t window, size_t stride) {
  CHECK(stride >= 1 && stride <= window, "windows must advance and leave no gap");
  std::vector<Window> all;
  const size_t rows = tokens > 0 ? tokens - 1 : 0;  // nothing follows the last token
  for (size_t done = 0; done < rows;) {
    const size_t end = std::min(rows, done == 0 ? window : done + stride);
    all.push_back({end > window ? end - window : 0, done, end});
    done = end;
  }
  return all;
}

Result<void> score_text(const Scoring& s, std::vector<RowScore>& scores, const std::function<Result<void>()>& pause) {
  if (s.reference != nullptr && s.reference->vocab() != s.model->vocab()) {
    return invalid(fmt::format("the vocabularies differ: the model has {} tokens and the reference {}",
                               s.model->vocab(), s.reference->vocab()));
  }
  for (size_t i = 0; i < s.ids.size(); ++i) {
    if (s.ids[i] >= 0 && s.ids[i] < s.model->vocab()) continue;
    return invalid(
        fmt::format("token {} of the text has the id {}, outside the vocabulary of {}", i, s.ids[i], s.model->vocab()));
  }
  for (const Window& w : s.windows) {
    if (w.end <= scores.size()) continue;
    scores.resize(w.first);
    for (LogitSource* source : {s.model, s.reference}) {
      if (source == nullptr) continue;
      CALLA_TRY(source->restart(w.begin));
      CALLA_TRY(source->feed(s.ids.subspan(w.begin, w.first - w.begin), false));
    }
    for (size_t at = w.first; at < w.end; at += s.rows_at_once) {
      const auto tokens = s.ids.subspan(at, std::min(s.rows_at_once, w.end - at));
      CALLA_ASSIGN(const auto ours, s.model->feed(tokens, true));
      std::span<const float> theirs;
      if (s.reference != nullptr) {
        CALLA_ASSIGN(theirs, s.reference->feed(tokens, true));
      }
      const size_t vocab = ours.size() / tokens.size();
      for (size_t i = 0; i < tokens.size(); ++i) {
        const auto score = score_row(ours.subspan(i * vocab, vocab),
                                     theirs.empty() ? theirs : theirs.subspan(i * vocab, vocab), s.ids[at + i + 1]);
        if (!score) return fail(score.error().code, fmt::format("after token {}: {}", at + i, score.error().message));
        scores.push_back(*score);
      }
      CALLA_TRY(pause());
    }
  }
  return {};
}

}  // namespace calla
