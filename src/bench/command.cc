#include "bench/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "formats/printable.h"

namespace calla {
namespace {

constexpr size_t kMostOutput = 64 << 20;

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) == 0) {
      read = ends[0];
      write = ends[1];
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_write();
    if (read >= 0) ::close(read);
  }
  void close_write() {
    if (write >= 0) ::close(write);
    write = -1;
  }
};

// While it lives, SIGTERM and SIGHUP wait, and fd is readable once one of them has come; the end of this lets it
// through.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGHUP);
    ::pthread_sigmask(SIG_BLOCK, &held, &before_);
    fd_ = ::signalfd(-1, &held, SFD_CLOEXEC);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() {
    if (fd_ >= 0) ::close(fd_);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  int fd() const { return fd_; }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
  int fd_ = -1;
};

tl::unexpected<Error> cannot_start(int error) {
  return fail(Error::Code::kIo, fmt::format("cannot start the command: {}", std::generic_category().message(error)));
}

// /bin/sh with the ends of the pipes as standard output and error; errno where it cannot be started.
Result<pid_t> spawn_shell(const std::string& command, const Pipe& out, const Pipe& err, const sigset_t& mask) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err.write, STDERR_FILENO);
  // This program ignores SIGPIPE and handles SIGINT; the peer shall not.
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  sigaddset(&defaults, SIGINT);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::string shell = "/bin/sh", flag = "-c", text = command;
  char* const args[] = {shell.data(), flag.data(), text.data(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, shell.c_str(), &actions, &attributes, args, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return cannot_start(error);
  return pid;
}

// Reads what is there. False: the other side closed the pipe.
bool read_some(int fd, std::string& text) {
  char buffer[1 << 14];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  if (n > 0) text.append(buffer, static_cast<size_t>(n));
  return n > 0 || (n < 0 && errno == EINTR);
}

std::string last_line(std::string text) {
  text.erase(text.find_last_not_of("\r\n ") + 1);
  return printable(text.substr(text.find_last_of("\r\n") + 1));
}

}  // namespace

Result<std::string> run_command(const std::string& command, const std::atomic<bool>& cancel) {
  Pipe out, err;
  if (out.read < 0 || err.read < 0) return cannot_start(errno);
  // This program's end must not leave the command behind, which may hold most of the memory.
  const HeldSignals signals;
  CALLA_ASSIGN(const pid_t pid, spawn_shell(command, out, err, signals.before()));
  out.close_write();
  err.close_write();
  std::string output, errors;
  pollfd ends[] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}, {signals.fd(), POLLIN, 0}};
  bool stopped = false;
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    stopped = cancel || output.size() > kMostOutput;
    if (stopped) break;
    constexpr int kMilliseconds = 100;  // how soon `cancel` is seen
    if (::poll(ends, 3, kMilliseconds) <= 0) continue;
    stopped = ends[2].revents != 0;
    if (stopped) break;
    if (ends[0].revents != 0 && !read_some(out.read, output)) ends[0].fd = -1;
    if (ends[1].revents != 0 && !read_some(err.read, errors)) ends[1].fd = -1;
    // Only its end is ever shown.
    constexpr size_t kKept = 1 << 12;
    if (errors.size() > 16 * kKept) errors.erase(0, errors.size() - kKept);
  }
  if (stopped) ::kill(-pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (cancel) return fail(Error::Code::kCancelled, "cancelled");
  if (output.size() > kMostOutput) return invalid(fmt::format("the command printed more than {} bytes", kMostOutput));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return output;
  return fail(Error::Code::kIo,
              fmt::format("the command {} {}{}{}", WIFEXITED(status) ? "ended with exit code" : "was ended by signal",
                          WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), errors.empty() ? "" : ": ",
                          last_line(errors)));
}

}  // namespace calla
