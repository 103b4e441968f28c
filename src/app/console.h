#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/generate.h"

namespace calla {

// What the interactive commands need of the terminal and the standard streams.

// Writes everything, at once, to standard output. Errors: a closed pipe, a full disk.
Result<void> write_stdout(std::string_view text);

bool stdin_is_terminal();
bool stdout_is_terminal();

// Text of the model or of a file with every control character but line end and tab as U+FFFD, so that it cannot steer
// the terminal.
std::string for_terminal(std::string_view text);

inline constexpr std::string_view kDim = "\x1b[2m", kPlain = "\x1b[0m";

// While it lives, Ctrl-C sets flag() instead of ending the program; a second Ctrl-C before the flag was cleared ends it
// after all. One at a time.
class InterruptFlag {
 public:
  InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;
  ~InterruptFlag();
  const std::atomic<bool>& flag() const;
};

// Prints the text of an answer as it comes: on a terminal with the reasoning dimmed and no control characters.
class AnswerPrinter {
 public:
  // show_reasoning false: print the answer alone.
  AnswerPrinter(bool terminal, bool show_reasoning) : terminal_(terminal), show_reasoning_(show_reasoning) {}
  // False: standard output is gone; see error().
  bool print(std::string_view text, bool reasoning);
  // Ends the last line.
  void finish();
  const Result<void>& error() const { return error_; }

 private:
  bool put(std::string_view text);
  bool terminal_, show_reasoning_;
  bool in_reasoning_ = false, line_open_ = false;
  Result<void> error_;
};

// "prompt 23 tokens, 410.0 tok/s; answer 120 tokens, 52.3 tok/s; first token after 0.06 s; stop"
std::string describe(const Generation& generation);

}  // namespace calla
