#include "engine/snapshot_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "base/random.h"
#include "engine/model.h"
#include "engine/service.h"
#include "tests/engine/sinks.h"
#include "tests/formats/scratch_dir.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPlenty = uint64_t{1} << 30;

std::unique_ptr<Runner> open_bud() {
  RunnerOptions options;
  options.context = 512;
  options.sequences = 4;
  options.threads = 1;
  options.load.report = false;
  return open_runner(CALLA_SOURCE_DIR "/models/bud", options).value();
}

std::unique_ptr<SnapshotStore> open_store(Runner& runner, const fs::path& dir, uint64_t limit = kPlenty) {
  auto store = SnapshotStore::open(runner, dir, limit, [] {});
  EXPECT_TRUE(store) << store.error().message;
  return std::move(*store);
}

std::vector<int32_t> tokens_of(uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(1 + random.below(80));
  for (int32_t& id : tokens) id = static_cast<int32_t>(random.below(4000));
  tokens[0] = static_cast<int32_t>(seed % 4000);
  return tokens;
}

std::shared_ptr<Sequence> feed(Runner& runner, const std::vector<int32_t>& tokens) {
  std::shared_ptr<Sequence> s = runner.start().value();
  const Step step{s.get(), tokens, Step::Logits::kNone};
  std::vector<float> none;
  EXPECT_TRUE(runner.forward({&step, 1}, none));
  return s;
}

std::vector<float> next_logits(Runner& runner, Sequence& sequence) {
  const int32_t id = 7;
  const Step step{&sequence, {&id, 1}};
  std::vector<float> logits;
  EXPECT_TRUE(runner.forward({&step, 1}, logits));
  return logits;
}

fs::path put(SnapshotStore& store, std::shared_ptr<const Sequence> snapshot) {
  EXPECT_TRUE(store.ready(snapshot->position()));
  store.write(std::move(snapshot));
  auto news = store.wait();
  EXPECT_TRUE(news && news->path) << news->path.error().message;
  return *news->path;
}

TEST(SnapshotStore, FindsItsFilesAgain) {
  const ScratchDir dir;
  const auto runner = open_bud();
  {
    const auto store = open_store(*runner, dir.path());
    for (uint64_t seed = 1; seed <= 3; ++seed) put(*store, feed(*runner, tokens_of(seed)));
    EXPECT_FALSE(SnapshotStore::open(*runner, dir.path(), kPlenty, [] {})) << "one process at a time";
  }
  const auto store = open_store(*runner, dir.path());
  const auto files = store->take_files();
  ASSERT_EQ(files.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(files[i].tokens, tokens_of(i + 1)) << "the least recently used first";
    auto loaded = store->load(files[i].path);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(next_logits(*runner, **loaded), next_logits(*runner, *feed(*runner, tokens_of(i + 1))));
  }
  EXPECT_TRUE(store->take_reports().empty());
}

TEST(SnapshotStore, KeepsItsLimitAndWhatWasUsedLast) {
  const ScratchDir dir;
  const auto runner = open_bud();
  uint64_t one = 0;
  {
    const auto store = open_store(*runner, dir.path());
    put(*store, feed(*runner, tokens_of(1)));
    one = store->bytes();
  }
  const uint64_t limit = 4 * one;
  const auto store = open_store(*runner, dir.path(), limit);
  const fs::path first = store->take_files()[0].path;
  for (uint64_t seed = 2; seed < 10; ++seed) {
    ASSERT_TRUE(store->load(first)) << "used again and again";
    put(*store, feed(*runner, tokens_of(seed)));
    EXPECT_LE(store->bytes(), limit);
    uint64_t there = 0;
    for (const auto& entry : fs::recursive_directory_iterator(dir.path())) {
      if (entry.is_regular_file()) there += entry.file_size();
    }
    EXPECT_EQ(there, store->bytes());
  }
  EXPECT_GE(store->count(), 3);
  EXPECT_TRUE(fs::exists(first));
  EXPECT_FALSE(open_store(*runner, dir / "small", 100)->ready(1)) << "larger than the limit";
}

// A file with any bit wrong, or cut anywhere, is found out and removed.
TEST(SnapshotStore, DamageIsFoundAndRemoved) {
  const ScratchDir dir;
  const auto runner = open_bud();
  fs::path path;
  {
    const auto store = open_store(*runner, dir.path());
    path = put(*store, feed(*runner, tokens_of(1)));
  }
  std::string whole(fs::file_size(path), '\0');
  std::ifstream(path, std::ios::binary).read(whole.data(), static_cast<std::streamsize>(whole.size()));
  const auto damaged = [&](const std::string& content, const std::string& what) {
    std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    const auto store = open_store(*runner, dir.path());
    for (const auto& file : store->take_files()) EXPECT_FALSE(store->load(file.path)) << what;
    EXPECT_EQ(store->take_reports().size(), 1u) << what;
    EXPECT_FALSE(fs::exists(path)) << what;
  };
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    // The header densely, the rest here and there.
    const size_t at = i < 150 ? random.below(700) : random.below(whole.size());
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << random.below(8)));
    damaged(flipped, "byte " + std::to_string(at));
  }
  for (const size_t size : {size_t{0}, size_t{7}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    damaged(whole.substr(0, size), "cut to " + std::to_string(size));
  }
  damaged(whole + "x", "longer");
}

TEST(SnapshotStore, AFullDiskIsOneWarning) {
  const ScratchDir dir;
  const auto runner = open_bud();
  const auto store = open_store(*runner, dir.path());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit full = before;
  full.rlim_cur = 10000;
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  store->write(feed(*runner, tokens_of(1)));
  const auto news = store->wait();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(news && !news->path);
  EXPECT_FALSE(store->ready(1)) << "not tried again";
  EXPECT_EQ(store->count(), 0);
  for (const auto& entry : fs::recursive_directory_iterator(dir.path())) {
    EXPECT_FALSE(entry.path().string().ends_with(".part")) << "nothing half is left";
  }
}

// kill -9 while files are written and removed: what is left can be used or is not there. The child cannot clean up, so
// this is also what a crash leaves.
TEST(SnapshotStore, SurvivesAHundredKills) {
  const ScratchDir dir;
  const auto runner = open_bud();
  const uint64_t limit = 12 * (runner->state_bytes() + 100'000);
  Random random(11);
  int checked = 0, parts = 0;
  for (int round = 0; round < 100; ++round) {
    int progress[2];  // a byte when it has started, and for each file
    ASSERT_EQ(pipe(progress), 0);
    const pid_t child = fork();
    if (child == 0) {
      const auto own = open_bud();
      auto store = SnapshotStore::open(*own, dir.path(), limit, [] {});
      std::vector<std::shared_ptr<const Sequence>> snapshots;
      for (int i = 0; i < 3; ++i) snapshots.push_back(feed(*own, tokens_of(round * 3 + i)));
      if (!store || write(progress[1], "x", 1) != 1) _exit(1);
      for (size_t i = 0;; ++i) {  // so that most of the time goes to files
        (*store)->write(snapshots[i % 3]);
        if (const auto news = (*store)->wait(); !news || !news->path) _exit(1);
        if (write(progress[1], "x", 1) != 1) _exit(1);
      }
    }
    close(progress[1]);
    char byte = 0;
    for (uint64_t left = 1 + random.below(4); left > 0; --left) {
      ASSERT_EQ(read(progress[0], &byte, 1), 1) << "the child ended by itself";
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(10'000)));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
    close(progress[0]);
    for (const auto& entry : fs::recursive_directory_iterator(dir.path())) {
      parts += entry.path().string().ends_with(".part");
    }
    const auto store = open_store(*runner, dir.path(), limit);
    auto files = store->take_files();
    EXPECT_TRUE(store->take_reports().empty()) << "a file under its own name is whole";
    EXPECT_LE(store->bytes(), limit);
    // The newest are of this round; the older ones were looked at before.
    for (size_t i = files.size() - std::min<size_t>(files.size(), 2); i < files.size(); ++i) {
      auto loaded = store->load(files[i].path);
      ASSERT_TRUE(loaded) << loaded.error().message;
      EXPECT_EQ(next_logits(*runner, **loaded), next_logits(*runner, *feed(*runner, files[i].tokens)));
      ++checked;
    }
  }
  EXPECT_GT(checked, 50);
  std::printf("%d states compared, %d kills in the middle of a file\n", checked, parts);
}

// A new service over the same folder starts where the old one was.
TEST(ServiceOnDisk, ARestartFindsTheSnapshots) {
  const ScratchDir dir;
  RunnerOptions options;
  options.context = 1024;
  options.load.report = false;
  const auto model = Model::open(CALLA_SOURCE_DIR "/models/bud", options).value();
  std::vector<std::string> log;
  const ServiceOptions service_options{.cache_dir = dir.path(), .log = [&](std::string line) { log.push_back(line); }};
  ServiceRequest request;
  Random random(1);
  for (int i = 0; i < 700; ++i) request.prompt.push_back(static_cast<int32_t>(random.below(4000)));
  request.boundaries = {400, 690};
  request.options.max_tokens = 20;
  request.options.sampling.temperature = 0;
  const auto answer = [&](Service& service) {
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(service.submit(request, sink));
    return sink->wait().value();
  };
  std::string with, without;
  {
    const auto service = Service::start(*model, service_options).value();
    with = answer(*service).text;
    std::ranges::reverse(request.prompt);
    request.boundaries = {};  // as of a prompt that is no chat
    without = answer(*service).text;
  }
  const auto service = Service::start(*model, service_options).value();
  Generation again = answer(*service);
  EXPECT_EQ(again.text, without);
  EXPECT_EQ(again.reused_tokens, 699);
  std::ranges::reverse(request.prompt);
  request.boundaries = {400, 690};
  again = answer(*service);
  EXPECT_EQ(again.text, with);
  EXPECT_EQ(again.reused_tokens, 690);
  EXPECT_GT(service->stats().files, 1);
  EXPECT_TRUE(log.empty()) << "no word of a file that is no good";
}

}  // namespace
}  // namespace calla
