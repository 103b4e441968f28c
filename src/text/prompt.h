#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace calla {

// A byte range of a text.
struct Span {
  size_t offset = 0;
  size_t length = 0;
};

// Text for the model in which only the ranges in `controls` are control tokens: the chat template's own markers, such
// as
// "<|im_start|>" and "<think>". The same letters anywhere else (typed by a user, read from a file, returned by a tool)
// are plain text. INVARIANT: controls are sorted, disjoint and inside the text.
struct Prompt {
  std::string text;
  std::vector<Span> controls;
};

}  // namespace calla
