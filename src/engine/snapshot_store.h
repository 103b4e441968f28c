#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/runner.h"

namespace calla {

// Snapshots on disk: one file each (Runner::save), in a folder of their own for each version of states (other weights,
// another format), within a limit of bytes; the ones used last are kept, by the files' times, so also after a restart.
//
// A file is written by a thread of the store's own, under another name until it is whole and synced, so that the power
// or the process may end at any moment: what is left then is removed by the next start. A file that is damaged is found
// by its checksum when it is loaded, and removed. Where writing fails, as on a full disk, nothing more is written until
// the next start. Two processes cannot use one folder at a time.
//
// All functions are called by the thread that uses the runner.
class SnapshotStore {
 public:
  // on_news: called from the store's thread when there is something for news(). Errors: the folder cannot be made or is
  // in use.
  static Result<std::unique_ptr<SnapshotStore>> open(Runner& runner, const std::filesystem::path& folder,
                                                     uint64_t limit, std::function<void()> on_news);
  ~SnapshotStore();  // waits for the write that is under way

  struct File {
    std::filesystem::path path;
    std::vector<int32_t> tokens;
  };
  // What the folder held at the start and was readable. Once.
  std::vector<File> take_files() { return std::move(files_); }
  // One line each about what was found and removed since the last call.
  std::vector<std::string> take_reports() { return std::exchange(reports_, {}); }

  // Whether a snapshot of this many tokens can be written now.
  bool ready(int tokens) const;
  // Writes a snapshot in the background. REQUIRES: ready().
  void write(std::shared_ptr<const Sequence> snapshot);

  struct News {
    std::shared_ptr<const Sequence> snapshot;
    Result<std::filesystem::path> path;          // of its file
    std::vector<std::filesystem::path> removed;  // to make room
  };
  // What became of the last write(); once.
  std::optional<News> news();
  // The same, but waits for it; nothing if there was no write().
  std::optional<News> wait();

  // Reads a snapshot and marks it as used. An error other than kMemory: the file is no good and has been removed.
  Result<std::unique_ptr<Sequence>> load(const std::filesystem::path& path);

  int count() const;
  uint64_t bytes() const;

 private:
  SnapshotStore(Runner& runner, std::filesystem::path folder, uint64_t limit, std::function<void()> on_news);
  void scan();
  void remove(const std::filesystem::path& path, const std::string& why);
  void run();
  News store(std::shared_ptr<const Sequence> snapshot);
  uint64_t bytes_for(int tokens) const;
  std::filesystem::path path_for(std::span<const int32_t> tokens) const;

  Runner& runner_;
  const std::filesystem::path folder_;
  const uint64_t limit_;
  const uint64_t token_bytes_;  // asked once: only the thread of the runner may ask for its pages
  const std::function<void()> on_news_;
  int lock_ = -1;  // file
  std::vector<File> files_;
  std::vector<std::string> reports_;
  bool failed_ = false;  // nothing is written any more

  mutable std::mutex mutex_;
  // Guarded by the mutex.
  struct Held {
    uint64_t bytes = 0;
    uint64_t used = 0;  // greater: later
  };
  std::map<std::filesystem::path, Held> held_;
  uint64_t uses_ = 0;
  bool busy_ = false, ending_ = false;
  std::shared_ptr<const Sequence> job_;
  std::optional<News> news_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace calla
