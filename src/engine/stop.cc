#include "engine/stop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace calla {

StopStrings::StopStrings(std::vector<std::string> strings) {
  for (std::string& s : strings) {
    CHECK(!s.empty(), "an empty stop string");
    Automaton a{std::move(s), {0, 0}};
    for (size_t i = 1, k = 0; i < a.string.size(); ++i) {
      while (k > 0 && a.string[i] != a.string[k]) k = a.border[k];
      if (a.string[i] == a.string[k]) ++k;
      a.border.push_back(k);
    }
    automata_.push_back(std::move(a));
  }
}

void StopStrings::Automaton::step(char c) {
  while (state > 0 && string[state] != c) state = border[state];
  if (string[state] == c) ++state;
}

std::string StopStrings::push(std::string_view text) {
  if (stopped_) return {};
  for (const char c : text) {
    held_ += c;
    size_t longest = 0;
    for (Automaton& a : automata_) {
      a.step(c);
      if (a.state == a.string.size() && a.state > longest) {
        longest = a.state;
        matched_ = a.string;
      }
    }
    if (longest > 0) {
      stopped_ = true;
      held_.resize(held_.size() - longest);
      return std::exchange(held_, {});
    }
  }
  size_t partial = 0;
  for (const Automaton& a : automata_) partial = std::max(partial, a.state);
  std::string certain = held_.substr(0, held_.size() - partial);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopStrings::finish() {
  return std::exchange(held_, {});
}

}  // namespace calla
