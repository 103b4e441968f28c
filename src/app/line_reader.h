#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace calla {

// Reads lines from a person: line editing, history and paste on a terminal (libedit), plain lines from anything else.
// Not thread-safe; one in a program.
class LineReader {
 public:
  enum class Outcome {
    kLine,
    kInterrupted,  // Ctrl-C: the line was given up
    kEnd,          // Ctrl-D on an empty line, or the end of the input
  };

  // history: the file that lines are remembered in, readable by its owner alone; "" for none. A history that cannot be
  // read or written is silently done without.
  explicit LineReader(std::filesystem::path history);
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;
  ~LineReader();

  // One line without its end, of valid UTF-8. On a terminal, pasted line ends stay in it.
  Outcome read(const char* prompt, std::string& line);
  void remember(const std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null: not a terminal
};

// $XDG_STATE_HOME/calla/history, else ~/.local/state/calla/history; "" without a home. Makes the folder.
std::filesystem::path history_file();

}  // namespace calla
