#include "app/line_reader.h"

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "app/console.h"
#include "text/utf8.h"

namespace calla {
namespace {

constexpr int kHistorySize = 1000;
constexpr size_t kMaxPaste = 1 << 20;
constexpr wchar_t kPasteEnd[] = L"\x1b[201~";

// A terminal that brackets what is pasted sends it whole, so that line ends in it do not send the message.
void bracket_pastes(bool on) {
  std::fputs(on ? "\x1b[?2004h" : "\x1b[?2004l", stdout);
  std::fflush(stdout);
}

}  // namespace

struct LineReader::Impl {
  EditLine* edit = nullptr;
  ::History* history = nullptr;
  std::filesystem::path file;
  const char* prompt = "";
  bool interrupted = false;

  explicit Impl(std::filesystem::path f) : file(std::move(f)) {
    // libedit needs a UTF-8 locale to edit anything but ASCII.
    std::setlocale(LC_CTYPE, "");
    if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
    edit = el_init("calla", stdin, stdout, stderr);
    history = history_init();
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistorySize);
    ::history(history, &event, H_SETUNIQUE, 1);
    if (!file.empty()) ::history(history, &event, H_LOAD, file.c_str());
    el_set(edit, EL_CLIENTDATA, this);
    el_set(edit, EL_PROMPT, &Impl::show_prompt);
    el_set(edit, EL_EDITOR, "emacs");
    el_set(edit, EL_HIST, ::history, history);
    el_set(edit, EL_SIGNAL, 0);
    // While a line is edited Ctrl-C and Ctrl-Z are keys: a signal would be noticed by read() only now and then.
    el_set(edit, EL_SETTY, "-d", "-isig", nullptr);
    el_set(edit, EL_ADDFN, "calla-suspend", "Suspend the program", &Impl::on_suspend);
    el_set(edit, EL_BIND, "^Z", "calla-suspend", nullptr);
    el_set(edit, EL_ADDFN, "calla-interrupt", "Give up the line", &Impl::on_interrupt);
    el_set(edit, EL_BIND, "^C", "calla-interrupt", nullptr);
    el_set(edit, EL_ADDFN, "calla-paste", "Insert pasted text", &Impl::on_paste);
    el_set(edit, EL_BIND, "\x1b[200~", "calla-paste", nullptr);
    el_set(edit, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  }
  ~Impl() {
    history_end(history);
    el_end(edit);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  static Impl* of(EditLine* e) {
    void* self = nullptr;
    el_get(e, EL_CLIENTDATA, &self);
    return static_cast<Impl*>(self);
  }
  static char* show_prompt(EditLine* e) { return const_cast<char*>(of(e)->prompt); }  // libedit only reads it
  static unsigned char on_interrupt(EditLine* e, int) {
    of(e)->interrupted = true;
    return CC_NEWLINE;
  }
  static unsigned char on_suspend(EditLine* e, int) {
    el_set(e, EL_PREP_TERM, 0);
    ::raise(SIGTSTP);
    el_set(e, EL_PREP_TERM, 1);
    return CC_REDISPLAY;
  }
  static unsigned char on_paste(EditLine* e, int) {
    std::wstring text;
    wchar_t c = 0;
    while (text.size() < kMaxPaste && !text.ends_with(kPasteEnd) && el_wgetc(e, &c) == 1)
      text += c == L'\r' ? L'\n' : c;
    if (text.ends_with(kPasteEnd)) text.resize(text.size() - std::wcslen(kPasteEnd));
    while (!text.empty() && text.back() == L'\n') text.pop_back();
    return el_winsertstr(e, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }
};

LineReader::LineReader(std::filesystem::path history) {
  if (stdin_is_terminal() && stdout_is_terminal()) impl_ = std::make_unique<Impl>(std::move(history));
}

LineReader::~LineReader() = default;

LineReader::Outcome LineReader::read(const char* prompt, std::string& line) {
  line.clear();
  if (impl_ == nullptr) {
    int c = 0;
    while ((c = std::getchar()) != EOF && c != '\n') line += static_cast<char>(c);
    if (c == EOF && line.empty()) return Outcome::kEnd;
    line = repair_utf8(line);
    return Outcome::kLine;
  }
  impl_->prompt = prompt;
  impl_->interrupted = false;
  // libedit shows the prompt before it takes the terminal over; a Ctrl-C in between would end the program.
  el_set(impl_->edit, EL_PREP_TERM, 1);
  bracket_pastes(true);
  int count = 0;
  const char* text = el_gets(impl_->edit, &count);
  bracket_pastes(false);
  if (impl_->interrupted) {
    std::fputs("^C\n", stdout);
    std::fflush(stdout);
    return Outcome::kInterrupted;
  }
  if (text == nullptr || count <= 0) return Outcome::kEnd;
  line = repair_utf8({text, static_cast<size_t>(count)});
  if (line.ends_with('\n')) line.pop_back();
  return Outcome::kLine;
}

void LineReader::remember(const std::string& text) {
  if (impl_ == nullptr) return;
  HistEvent event;
  ::history(impl_->history, &event, H_ENTER, text.c_str());
  if (impl_->file.empty()) return;
  // Made with its final mode: nobody else can open it in between.
  if (const int fd = ::open(impl_->file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600); fd >= 0) {
    ::close(fd);
    ::history(impl_->history, &event, H_SAVE, impl_->file.c_str());
  }
}

std::filesystem::path history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state != nullptr && state[0] == '/') {
    folder = state;
  } else if (home != nullptr && home[0] == '/') {
    folder = std::filesystem::path(home) / ".local/state";
  } else {
    return {};
  }
  folder /= "calla";
  std::error_code error;
  std::filesystem::create_directories(folder.parent_path(), error);
  ::mkdir(folder.c_str(), 0700);
  return folder / "history";
}

}  // namespace calla
