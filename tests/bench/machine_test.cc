// What the benchmark takes from the machine: energy counters and other programs.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "bench/command.h"
#include "bench/energy.h"
#include "tests/formats/scratch_dir.h"

namespace calla {
namespace {

void zone(const ScratchDir& dir, const std::string& folder, const std::string& name, const std::string& energy) {
  std::filesystem::create_directories(dir / folder);
  std::ofstream(dir / folder / "name") << name << "\n";
  std::ofstream(dir / folder / "energy_uj") << energy << "\n";
  std::ofstream(dir / folder / "max_energy_range_uj") << "1000000000\n";
}

TEST(Energy, SumsPackagesAndOnlyThose) {
  ScratchDir dir;
  zone(dir, "intel-rapl:0", "package-0", "5000000");
  zone(dir, "intel-rapl:1", "package-1", "999000000");
  zone(dir, "intel-rapl:0:0", "core", "1");
  const EnergyMeter meter(dir.path());
  const auto before = meter.read();
  ASSERT_EQ(before.size(), 2u);
  zone(dir, "intel-rapl:0", "package-0", "7500000");
  zone(dir, "intel-rapl:1", "package-1", "500000");  // started again after 1000 J
  zone(dir, "intel-rapl:0:0", "core", "900000000");
  EXPECT_DOUBLE_EQ(meter.joules(before, meter.read()).value(), 2.5 + 1.5);
}

TEST(Energy, NothingToRead) {
  ScratchDir dir;
  const EnergyMeter none(dir / "missing");
  EXPECT_FALSE(none.joules(none.read(), none.read()));
  zone(dir, "intel-rapl:0", "package-0", "secret");
  const EnergyMeter unreadable(dir.path());
  EXPECT_FALSE(unreadable.joules(unreadable.read(), unreadable.read()));
}

TEST(Command, GivesItsOutput) {
  const std::atomic<bool> cancel = false;
  EXPECT_EQ(run_command("printf 'a\\nb'; echo noise >&2", cancel).value(), "a\nb");
  EXPECT_EQ(run_command("cat", cancel).value(), "") << "there is nothing on standard input";
  EXPECT_EQ(run_command("yes | head -c 300000", cancel).value().size(), 300000u);
  EXPECT_EQ(run_command("yes noise | head -c 3000000 >&2; echo x", cancel).value(), "x\n");
}

TEST(Command, Failures) {
  const std::atomic<bool> cancel = false;
  const auto message = [&](const std::string& command) { return run_command(command, cancel).error().message; };
  EXPECT_EQ(message("echo first >&2; echo 'no \033[31mmodel' >&2; exit 3"),
            "the command ended with exit code 3: no \\x1b[31mmodel");
  EXPECT_EQ(message("exit 1"), "the command ended with exit code 1");
  EXPECT_EQ(message("kill -9 $$"), "the command was ended by signal 9");
  EXPECT_NE(message("no-such-program-anywhere").find("exit code 127"), std::string::npos);
  EXPECT_NE(message("yes | head -c 70000000").find("more than"), std::string::npos);
}

TEST(Command, CancelEndsTheWholeGroup) {
  ScratchDir dir;
  std::atomic<bool> cancel = false;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    cancel = true;
  });
  const auto start = std::chrono::steady_clock::now();
  // A child that outlived the shell would write the file.
  const auto result = run_command("(sleep 1; echo > " + (dir / "alive").string() + ") & sleep 60", cancel);
  later.join();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Error::Code::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_TRUE(dir.files().empty());
}

TEST(Command, DoesNotOutliveThisProgram) {
  ScratchDir dir;
  const pid_t pid = ::fork();
  if (pid == 0) {
    (void)run_command("sleep 1; echo > " + (dir / "alive").string(), false);
    ::_exit(0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ::kill(pid, SIGTERM);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_TRUE(dir.files().empty());
}

}  // namespace
}  // namespace calla
