// The server as a program: what it prints, whom it lets in, how it ends.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/app/program.h"
#include "tests/server/client.h"

namespace calla {
namespace {

// `calla serve` on a free port.
class Serving {
 public:
  explicit Serving(std::vector<std::string> args = {}) {
    args.insert(args.begin(), {"serve", "--port", "0"});
    int out[2];
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setenv("XDG_DATA_HOME", (data_ / "data").c_str(), 1);
      ::dup2(out[1], 1);
      if (::freopen((data_ / "log").c_str(), "w", stderr) == nullptr) ::_exit(126);
      exec_program(args);
    }
    ::close(out[1]);
    // The greeting comes in one piece, before anything else.
    char buffer[8192];
    while (text_.find("Ctrl-C") == std::string::npos) {
      const ssize_t n = ::read(out[0], buffer, sizeof buffer);
      if (n <= 0) break;
      text_.append(buffer, static_cast<size_t>(n));
    }
    ::close(out[0]);
    const std::string before = "is served at http://localhost:";
    if (const size_t at = text_.find(before); at != std::string::npos) port_ = std::atoi(&text_[at + before.size()]);
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  int port() const { return port_; }
  const std::string& greeting() const { return text_; }
  void signal(int number) const { ::kill(pid_, number); }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return exit_code(status);
  }

 private:
  TempDir data_;
  std::string text_;
  pid_t pid_ = -1;
  int port_ = 0;
};

constexpr const char* kJson = "Content-Type: application/json\r\n";
std::string chat(const std::string& more) {
  return request_text("POST /v1/chat/completions",
                      R"({"messages": [{"role": "user", "content": "Tell me a story."}], )" + more + "}", kJson);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Serve, GreetsAndAnswers) {
  Serving serving;
  ASSERT_GT(serving.port(), 0) << serving.greeting();
  const std::string url = "http://localhost:" + std::to_string(serving.port());
  for (const std::string& part :
       {std::string("memory: weights "), "ANTHROPIC_BASE_URL=" + url + " ", "OPENAI_BASE_URL=" + url + "/v1 "}) {
    EXPECT_NE(serving.greeting().find(part), std::string::npos) << part << "\n" << serving.greeting();
  }
  Client client(serving.port());
  ASSERT_TRUE(client.send(chat(R"("max_tokens": 8)")));
  const auto answer = client.answer();
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_NE(answer.body.find("\"finish_reason\": \"length\""), std::string::npos) << answer.body;
}

TEST(Serve, RefusesWhatCannotWork) {
  const Ran open = run_program({"serve", "--host", "0.0.0.0"});
  EXPECT_EQ(open.code, 1);
  EXPECT_NE(open.err.find("--api-key"), std::string::npos) << open.err;
  const Ran name = run_program({"serve", "--host", "example.org", "--api-key", "0123456789"});
  EXPECT_EQ(name.code, 1);
  EXPECT_NE(name.err.find("example.org"), std::string::npos) << name.err;
  EXPECT_EQ(run_program({"serve", "--port", "70000"}).code, 2);
  Serving serving;
  const Ran taken = run_program({"serve", "--port", std::to_string(serving.port())});
  EXPECT_EQ(taken.code, 1);
  EXPECT_NE(taken.err.find(std::to_string(serving.port())), std::string::npos) << taken.err;
}

TEST(Serve, AsksForItsKey) {
  Serving serving({"--api-key", "sesame"});
  Client client(serving.port());
  ASSERT_TRUE(client.send(chat(R"("max_tokens": 1)")));
  EXPECT_EQ(client.answer().status, 401);
  Client with_key(serving.port());
  ASSERT_TRUE(with_key.send(request_text("GET /v1/models", "", "Authorization: Bearer sesame\r\n")));
  EXPECT_EQ(with_key.answer().status, 200);
}

TEST(Serve, FinishesWhatRunsWhenItIsStopped) {
  Serving serving;
  Client client(serving.port());
  ASSERT_TRUE(client.send(chat(R"("max_tokens": 400, "ignore_eos": true, "stream": true)")));
  ASSERT_NE(client.until("data: "), "");
  serving.signal(SIGTERM);
  EXPECT_NE(client.until("data: [DONE]", 60), "");
  EXPECT_EQ(serving.wait(), 0);
}

TEST(Serve, ASecondSignalEndsItAtOnce) {
  Serving serving;
  Client client(serving.port());
  ASSERT_TRUE(client.send(chat(R"("max_tokens": 8000, "ignore_eos": true, "stream": true)")));
  ASSERT_NE(client.until("data: "), "");
  const auto start = std::chrono::steady_clock::now();
  serving.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  serving.signal(SIGINT);
  EXPECT_EQ(serving.wait(), 0);
  EXPECT_LT(seconds_since(start), 3);
  EXPECT_EQ(client.rest().find("[DONE]"), std::string::npos) << "a cut answer must not look complete";
}

TEST(Serve, AKilledClientFreesItsPlaceWithinASecond) {
  Serving serving;
  Client client(serving.port());
  // A long prompt, and the client goes while it is read.
  std::string words;
  for (int i = 0; i < 6000; ++i) words += "word ";
  ASSERT_TRUE(client.send(request_text(
      "POST /v1/messages",
      R"({"max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": ")" + words + R"("}]})", kJson)));
  ASSERT_NE(client.until(": ping"), "");
  client.reset();
  const auto start = std::chrono::steady_clock::now();
  Client health(serving.port());
  for (bool busy = true; busy;) {
    ASSERT_TRUE(health.send(request_text("GET /health")));
    busy = health.answer().body.find("\"running\":0,\"queued\":0") == std::string::npos;
    ASSERT_LT(seconds_since(start), 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace
}  // namespace calla
