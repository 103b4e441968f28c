#include "app/console.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "text/utf8.h"

namespace calla {
namespace {

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");
struct sigaction before;

void on_interrupt(int) {
  if (!interrupted.exchange(true)) return;
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);
}

}  // namespace

Result<void> write_stdout(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return fail(Error::Code::kIo, errno == EPIPE ? "standard output was closed"
                                                   : fmt::format("cannot write to standard output: {}",
                                                                 std::generic_category().message(errno)));
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

bool stdin_is_terminal() {
  return ::isatty(STDIN_FILENO) == 1;
}
bool stdout_is_terminal() {
  return ::isatty(STDOUT_FILENO) == 1;
}

std::string for_terminal(std::string_view text) {
  const std::string valid = repair_utf8(text);
  std::string out;
  for (size_t i = 0; i < valid.size(); i += utf8_length(valid[i])) {
    const uint32_t c = utf8_at(valid.data() + i);
    const bool control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
    append_utf8(control ? 0xfffd : c, out);
  }
  return out;
}

InterruptFlag::InterruptFlag() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before);
}

InterruptFlag::~InterruptFlag() {
  ::sigaction(SIGINT, &before, nullptr);
}

const std::atomic<bool>& InterruptFlag::flag() const {
  return interrupted;
}

bool AnswerPrinter::print(std::string_view text, bool reasoning) {
  if (reasoning && !show_reasoning_) return true;
  std::string out;
  if (reasoning != in_reasoning_) {
    // A blank line between the two, in either order.
    if (terminal_) out = reasoning ? kDim : kPlain;
    if (line_open_ || !reasoning) out += "\n\n";
    in_reasoning_ = reasoning;
  }
  out += terminal_ ? for_terminal(text) : std::string(text);
  return put(out);
}

void AnswerPrinter::finish() {
  if (in_reasoning_ && terminal_) put(kPlain);
  if (line_open_) put("\n");
}

bool AnswerPrinter::put(std::string_view text) {
  if (error_) error_ = write_stdout(text);
  if (!text.empty()) line_open_ = text.back() != '\n';
  return error_.has_value();
}

std::string describe(const Generation& g) {
  const std::string reused = g.reused_tokens > 0 ? fmt::format(" ({} reused)", g.reused_tokens) : "";
  const char* end = "";
  switch (g.finish) {
    case FinishReason::kStopToken:
      end = "ended by the model";
      break;
    case FinishReason::kStopString:
      end = "ended by a stop text";
      break;
    case FinishReason::kLength:
      end = "cut at the limit of tokens";
      break;
    case FinishReason::kContext:
      end = "cut: the context is full";
      break;
    case FinishReason::kCancelled:
      end = "cancelled";
      break;
  }
  return fmt::format("prompt {} tokens{}, {:.1f} tok/s; answer {} tokens, {:.1f} tok/s; first token after {:.2f} s; {}",
                     g.prompt_tokens, reused, g.prompt_rate(), g.tokens.size(), g.decode_rate(), g.times.first_seconds,
                     end);
}

}  // namespace calla
