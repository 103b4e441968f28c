#include "engine/reasoning.h"

#include <algorithm>
#include <utility>

namespace calla {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>";

void drop_newlines(std::string& text) {
  text.erase(0, std::min(text.find_first_not_of('\n'), text.size()));
}

// How many bytes at the end may be line ends and the beginning of a closing marker.
size_t undecided(std::string_view text) {
  size_t marker = std::min(text.size(), kClose.size() - 1);
  while (marker > 0 && !kClose.starts_with(text.substr(text.size() - marker))) --marker;
  const std::string_view before = text.substr(0, text.size() - marker);
  const size_t solid = before.find_last_not_of('\n');
  return text.size() - (solid == std::string_view::npos ? 0 : solid + 1);
}

}  // namespace

ReasoningSplitter::Split ReasoningSplitter::push(std::string_view text) {
  held_ += text;
  Split out;
  take(out, false);
  return out;
}

ReasoningSplitter::Split ReasoningSplitter::finish() {
  Split out;
  take(out, true);
  return out;
}

void ReasoningSplitter::take(Split& out, bool last) {
  if (state_ == State::kStart) {
    const size_t solid = std::min(held_.find_first_not_of('\n'), held_.size());
    const std::string_view begin = std::string_view(held_).substr(solid);
    if (begin.starts_with(kOpen)) {
      held_.erase(0, solid + kOpen.size());
      state_ = State::kOpened;
    } else if (!last && kOpen.starts_with(begin)) {
      return;
    } else {
      state_ = State::kAnswer;
    }
  }
  if (state_ == State::kOpened) {
    drop_newlines(held_);
    if (!held_.empty()) state_ = State::kInside;
  }
  if (state_ == State::kInside) {
    const size_t close = held_.find(kClose);
    if (close == std::string::npos) {
      const size_t keep = last ? 0 : undecided(held_);
      out.reasoning += std::string_view(held_).substr(0, held_.size() - keep);
      held_.erase(0, held_.size() - keep);
      return;
    }
    const size_t solid = close == 0 ? std::string::npos : held_.find_last_not_of('\n', close - 1);
    out.reasoning += held_.substr(0, solid == std::string::npos ? 0 : solid + 1);
    held_.erase(0, close + kClose.size());
    state_ = State::kClosed;
  }
  if (state_ == State::kClosed) {
    drop_newlines(held_);
    if (!held_.empty()) state_ = State::kAnswer;
  }
  if (state_ == State::kAnswer) out.answer += std::exchange(held_, {});
}

}  // namespace calla
