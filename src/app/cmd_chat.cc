#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "app/command.h"
#include "app/console.h"
#include "app/line_reader.h"
#include "app/model_options.h"
#include "app/sampling_options.h"
#include "base/progress.h"
#include "engine/chat_session.h"
#include "engine/request_options.h"

namespace calla {
namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system, resume;
  std::optional<bool> thinking;
  bool hide_thinking = false, no_history = false;
};

constexpr const char* kHelp = R"(  /help                this page
  /clear               forget the conversation (the system message stays)
  /system [TEXT]       show, or set, the system message; /system - removes it
  /think on|off        whether the model thinks before it answers
  /think show|hide     whether you see it think
  /regenerate          another answer to your last message
  /save FILE           write the conversation; calla run --request reads it too
  /load FILE           read one back
  /stats               speeds of the last answer, and how full the context is
  /quit                leave; so does Ctrl-D
A message of several lines: end each but the last with \, or put it between two lines of """. Pasted lines stay together.
Ctrl-C stops an answer.
)";

// The terminal side of a chat; what is said and kept is ChatSession's.
class Chat {
 public:
  Chat(Model& model, ChatSession session, GenerateOptions generate, const Options& options)
      : model_(model),
        session_(std::move(session)),
        generate_(std::move(generate)),
        lines_(options.no_history ? std::filesystem::path() : history_file()),
        terminal_(stdin_is_terminal() && stdout_is_terminal()),
        show_thinking_(!options.hide_thinking) {}

  ChatSession& session() { return session_; }

  Result<void> run() {
    if (terminal_) {
      say(fmt::format("{} · context {} tokens · /help explains, Ctrl-D leaves", model_.name(), session_.context()));
    }
    std::string message;
    while (read_message(message)) {
      if (message.find_first_not_of(" \t\n") == std::string::npos) continue;
      lines_.remember(message);
      if (message[0] == '/') {
        CALLA_ASSIGN(const bool more, command(message));
        if (!more) return {};
      } else {
        CALLA_TRY(answer([&](const ChatSession::OnText& on_text, const GenerateOptions& options) {
          return session_.say(message, options, on_text);
        }));
      }
    }
    if (terminal_) CALLA_TRY(write_stdout("\n"));  // after the Ctrl-D
    return {};
  }

 private:
  // False: the person leaves.
  bool read_message(std::string& message) {
    message.clear();
    bool quoted = false;
    for (;;) {
      std::string line;
      const bool first = message.empty() && !quoted;
      switch (lines_.read(first ? "> " : ". ", line)) {
        case LineReader::Outcome::kEnd:
          return !message.empty() && !terminal_;
        case LineReader::Outcome::kInterrupted:
          if (first) say("Ctrl-D or /quit leaves");
          message.clear();
          quoted = false;
          continue;
        case LineReader::Outcome::kLine:
          break;
      }
      if (first && line == "\"\"\"") {
        quoted = true;
        continue;
      }
      if (quoted && line == "\"\"\"") {
        if (message.ends_with('\n')) message.pop_back();
        return true;
      }
      const bool more = quoted || line.ends_with('\\');
      if (!quoted && more) line.pop_back();
      message += line;
      if (!more) return true;
      message += '\n';
    }
  }

  template <class Ask>
  Result<void> answer(const Ask& ask) {
    AnswerPrinter printer(terminal_, show_thinking_);
    std::optional<Progress> progress;
    GenerateOptions options = generate_;
    options.on_prompt = [&](int done, int total) {
      if (!progress) progress.emplace("reading", total, Progress::Unit::kItems);
      progress->update(done);
      if (done == total) progress.reset();
      return true;
    };
    const InterruptFlag interrupt;
    options.cancel = &interrupt.flag();
    Result<Generation> result =
        ask([&](std::string_view text, bool reasoning) { return printer.print(text, reasoning); }, options);
    progress.reset();
    printer.finish();
    CALLA_TRY(printer.error());
    if (!result) {
      complain(result.error());
      return {};
    }
    report(*result);
    last_ = std::move(*result);
    return {};
  }

  void report(const Generation& g) {
    if (g.finish == FinishReason::kCancelled) {
      say(g.tokens.empty() ? "stopped before the answer began; your message was taken back" : "stopped");
    } else if (g.finish == FinishReason::kLength) {
      say(fmt::format("cut after {} tokens (--max-tokens)", g.tokens.size()));
    } else if (g.finish == FinishReason::kContext) {
      say(
          fmt::format("cut: the context of {} tokens is full. /clear forgets the conversation; calla chat --context N "
                      "starts a larger one",
                      session_.context()));
    } else if (session_.used() * 5 > session_.context() * 4) {
      say(fmt::format("{} of {} tokens of the context are used; /clear forgets the conversation", session_.used(),
                      session_.context()));
    }
  }

  // False: leave.
  Result<bool> command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    std::string rest = space == std::string::npos ? ""
                                                  : line.substr(line.find_first_not_of(' ', space) == std::string::npos
                                                                    ? line.size()
                                                                    : line.find_first_not_of(' ', space));
    while (rest.ends_with(' ')) rest.pop_back();
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      CALLA_TRY(write_stdout(kHelp));
    } else if (name == "/clear") {
      session_.clear();
      say("forgotten");
    } else if (name == "/system") {
      set_system(rest);
    } else if (name == "/think") {
      think(rest);
    } else if (name == "/regenerate") {
      CALLA_TRY(answer([&](const ChatSession::OnText& on_text, const GenerateOptions& options) {
        return session_.regenerate(options, on_text);
      }));
    } else if (name == "/save" || name == "/load") {
      file(name == "/save", rest);
    } else if (name == "/stats") {
      say(last_ ? describe(*last_) : "no answer yet");
      say(fmt::format("context: {} of {} tokens", session_.used(), session_.context()));
    } else {
      say(fmt::format("there is no {}; /help lists what there is", name));
    }
    return true;
  }

  void set_system(const std::string& text) {
    if (!text.empty()) session_.set_system(text == "-" ? "" : text);
    say(session_.system().empty() ? "no system message" : "system: " + session_.system());
  }

  void think(const std::string& what) {
    if (what == "on" || what == "off") {
      session_.set_thinking(what == "on");
    } else if (what == "show" || what == "hide") {
      show_thinking_ = what == "show";
    } else if (!what.empty()) {
      say("/think takes on, off, show or hide");
      return;
    }
    const auto thinking = session_.thinking();
    say(fmt::format("thinking is {} and {}",
                    !thinking   ? "the model's choice"
                    : *thinking ? "on"
                                : "off",
                    show_thinking_ ? "shown" : "hidden"));
  }

  void file(bool save, const std::string& path) {
    if (path.empty()) {
      say("name a file");
      return;
    }
    const Result<void> result = save ? session_.save(path) : session_.load(path);
    if (!result) {
      complain(result.error());
    } else {
      say(fmt::format("{} {} ({} turns)", save ? "saved" : "loaded", path, session_.turns()));
    }
  }

  // Notes to the person: dimmed on a terminal, on standard error otherwise, so that a pipe carries only answers.
  void say(std::string_view text) {
    if (terminal_) {
      fmt::print("{}{}{}\n", kDim, for_terminal(text), kPlain);
      std::fflush(stdout);
    } else {
      fmt::print(stderr, "{}\n", text);
    }
  }
  void complain(const Error& error) { fmt::print(stderr, "calla: {}\n", error.message); }

  Model& model_;
  ChatSession session_;
  GenerateOptions generate_;
  LineReader lines_;
  bool terminal_, show_thinking_;
  std::optional<Generation> last_;
};

Result<void> chat(const Options& o) {
  CALLA_ASSIGN(const auto model, open_model(o.model));
  GenerateOptions generate = default_options(*model);
  o.sampling.apply(generate);
  CALLA_TRY(check_options(generate));
  CALLA_ASSIGN(ChatSession session, ChatSession::start(*model));
  if (!o.resume.empty()) CALLA_TRY(session.load(o.resume));
  if (!o.system.empty()) session.set_system(o.system);
  // Bud is too small to think; the real model does unless it is told not to.
  session.set_thinking(!o.thinking && o.model.is_bud() ? std::optional(false) : o.thinking);
  return Chat(*model, std::move(session), std::move(generate), o).run();
}

constexpr const char* kExamples = R"(Examples:
  calla chat
  calla chat --model mlx-community/Qwen3.6-35B-A3B-4bit --no-thinking --temperature 0.7 --top-p 0.8
  calla chat --system "Answer in one sentence" --context 8192

A turn reads only what is new: the model's state is kept, and rolled back to where a regenerated or edited turn begins.
Lines are remembered in $XDG_STATE_HOME/calla/history (~/.local/state/calla/history), readable by you alone.
Fed from a pipe, every line is a message, and standard output carries only the answers.)";

}  // namespace

void add_chat(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  app.add_option("--system", o->system, "A system message before the conversation")->type_name("TEXT");
  app.add_option("--resume", o->resume, "Go on with a conversation that /save wrote")->type_name("FILE");
  add_thinking_flags(app, o->thinking);
  app.add_flag("--hide-thinking", o->hide_thinking, "Show only the answers");
  app.add_flag("--no-history", o->no_history, "Neither read nor write the history of lines");
  add_sampling_options(app, o->sampling);
  add_model_options(app, o->model);
  app.footer(kExamples);
  app.callback([o, &run] {
    validate(o->sampling);
    run = [o] { return chat(*o); };
  });
}

}  // namespace calla
