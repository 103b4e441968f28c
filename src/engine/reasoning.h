#pragma once

#include <string>
#include <string_view>

namespace calla {

// Tells the reasoning of an answer from the answer itself while the text streams in:
//
//   [<think>\n] reasoning \n</think>\n\n answer
//
// The opening marker is missing where the prompt has it already. The markers and the line ends next to them are
// dropped; what could still become a part of them is held back. Not thread-safe; one for each answer.
class ReasoningSplitter {
 public:
  struct Split {
    std::string reasoning;
    std::string answer;
  };
  // open: the prompt ends inside the reasoning.
  explicit ReasoningSplitter(bool open) : state_(open ? State::kOpened : State::kStart) {}

  Split push(std::string_view text);
  // The end of the text: what was held back.
  Split finish();

  bool reasoning() const { return state_ == State::kOpened || state_ == State::kInside; }

 private:
  enum class State {
    kStart,   // an opening marker may follow
    kOpened,  // reasoning, nothing of it seen yet
    kInside,  // reasoning
    kClosed,  // after the closing marker, before the answer's first letter
    kAnswer,
  };
  void take(Split& out, bool last);
  State state_;
  std::string held_;
};

}  // namespace calla
