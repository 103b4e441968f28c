#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace calla {

// Finds stop strings in text that comes in pieces. Text that could be the beginning of a stop string is held back until
// that is decided, so a reader never sees a part of one. How the text is cut into pieces makes no difference: the
// string that is complete first ends the text; of several that end at the same byte, the longest. Cost: one automaton
// step for each byte and string. Not thread-safe; one for each answer.
class StopStrings {
 public:
  // REQUIRES: no string is empty.
  explicit StopStrings(std::vector<std::string> strings);

  // Returns the text that is certain to stand before any stop string. Once stopped(), nothing more.
  std::string push(std::string_view text);
  // The end of the text: what was held back.
  std::string finish();

  bool stopped() const { return stopped_; }
  const std::string& matched() const { return matched_; }  // if stopped()

 private:
  // Knuth, Morris, Pratt: `state` bytes of the string are matched; border[i]: longest proper border of its first i
  // bytes.
  struct Automaton {
    std::string string;
    std::vector<size_t> border;
    size_t state = 0;
    void step(char c);
  };
  std::vector<Automaton> automata_;
  std::string held_;
  bool stopped_ = false;
  std::string matched_;
};

}  // namespace calla
