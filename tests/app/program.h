#pragma once

// Runs the program itself, on pipes or on a terminal of its own.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace calla {

inline const std::string kProgram = CALLA_BINARY_DIR "/calla";
inline const std::string kBud = CALLA_SOURCE_DIR "/models/bud";
inline bool has_bud() {
  return std::filesystem::exists(kBud + "/config.json");
}

// A folder of its own for each test.
class TempDir {
 public:
  TempDir()
      : path_(std::filesystem::path(testing::TempDir()) /
              ("calla_app_" + std::to_string(getpid()) + "_" + std::to_string(++count_))) {
    std::filesystem::create_directories(path_);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
  static inline int count_ = 0;
};

[[noreturn]] inline void exec_program(std::vector<std::string> args) {
  args.insert(args.begin(), kProgram);
  std::vector<char*> argv;
  for (std::string& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

struct Ran {
  int code = -1;  // exit code, or 128 + signal
  std::string out, err;
};

inline int exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs `calla args…` with `input` on standard input. close_output: standard output is a pipe that nobody reads.
inline Ran run_program(const std::vector<std::string>& args, const std::string& input = "", bool close_output = false) {
  int in[2], out[2], err[2];
  EXPECT_EQ(::pipe2(in, O_CLOEXEC) | ::pipe2(out, O_CLOEXEC) | ::pipe2(err, O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    exec_program(args);
  }
  for (const int fd : {in[0], out[1], err[1]}) ::close(fd);
  if (close_output) ::close(out[0]);
  std::thread writer([&] {
    ::signal(SIGPIPE, SIG_IGN);
    size_t done = 0;
    while (done < input.size()) {
      const ssize_t n = ::write(in[1], input.data() + done, input.size() - done);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    ::close(in[1]);
  });
  Ran ran;
  const auto drain = [](int fd, std::string& text) {
    char buffer[4096];
    for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
    ::close(fd);
  };
  std::thread errors([&] { drain(err[0], ran.err); });
  if (!close_output) drain(out[0], ran.out);
  errors.join();
  writer.join();
  int status = 0;
  ::waitpid(pid, &status, 0);
  ran.code = exit_code(status);
  return ran;
}

// The program on a terminal, and a person who types.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& args) {
    struct winsize size {
      24, 100, 0, 0
    };
    pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      ::setenv("TERM", "xterm", 1);
      ::setenv("LC_ALL", "C.UTF-8", 1);
      exec_program(args);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(fd_);
  }

  void type(const std::string& text) {
    ASSERT_EQ(::write(fd_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  // Waits until `text` appears in what came since the last match, and moves past it. False after `seconds`.
  bool expect(const std::string& text, double seconds = 20) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (;;) {
      if (const size_t at = seen_.find(text, from_); at != std::string::npos) {
        from_ = at + text.size();
        return true;
      }
      if (std::chrono::steady_clock::now() > end || !read_some()) return false;
    }
  }
  // Waits for the end; the exit code.
  int wait() {
    while (read_some()) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return exit_code(status);
  }
  // What came since the last match.
  std::string rest() const { return seen_.substr(from_); }

 private:
  // False: the program closed the terminal.
  bool read_some() {
    struct pollfd p {
      fd_, POLLIN, 0
    };
    if (::poll(&p, 1, 100) <= 0) return true;
    char buffer[4096];
    const ssize_t n = ::read(fd_, buffer, sizeof buffer);
    if (n <= 0) return false;
    seen_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  pid_t pid_ = -1;
  int fd_ = -1;
  std::string seen_;
  size_t from_ = 0;
};

}  // namespace calla
