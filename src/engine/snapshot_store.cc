#include "engine/snapshot_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/sha256.h"
#include "model/state.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".state", kPart = ".state.part";

}  // namespace

SnapshotStore::SnapshotStore(Runner& runner, fs::path folder, uint64_t limit, std::function<void()> on_news)
    : runner_(runner),
      folder_(std::move(folder)),
      limit_(limit),
      token_bytes_(runner.pages().bytes / kPage + sizeof(int32_t)),
      on_news_(std::move(on_news)) {}

Result<std::unique_ptr<SnapshotStore>> SnapshotStore::open(Runner& runner, const fs::path& folder, uint64_t limit,
                                                           std::function<void()> on_news) {
  const fs::path own = folder / runner.state_version();
  const auto refused = [&](int error) {
    return fail(Error::Code::kIo,
                fmt::format("cannot keep snapshots in {}: {}", own.string(), std::generic_category().message(error)));
  };
  std::error_code error;
  fs::create_directories(own, error);
  // They hold what people wrote.
  if (!error) fs::permissions(own, fs::perms::owner_all, error);
  if (error) return refused(error.value());
  std::unique_ptr<SnapshotStore> store(new SnapshotStore(runner, own, limit, std::move(on_news)));
  store->lock_ = ::open((own / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (store->lock_ < 0) return refused(errno);
  if (::flock(store->lock_, LOCK_EX | LOCK_NB) != 0) {
    return fail(Error::Code::kIo, fmt::format("{} is in use by another process", own.string()));
  }
  store->scan();
  store->thread_ = std::thread([s = store.get()] { s->run(); });
  return store;
}

SnapshotStore::~SnapshotStore() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (lock_ >= 0) ::close(lock_);
}

void SnapshotStore::scan() {
  struct Found {
    fs::path path;
    fs::file_time_type time;
    uint64_t bytes;
  };
  std::vector<Found> found;
  std::error_code error;
  for (auto it = fs::directory_iterator(folder_, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code gone;
    if (name.ends_with(kPart)) {
      fs::remove(it->path(), gone);
    } else if (name.ends_with(kExtension)) {
      found.push_back({it->path(), it->last_write_time(gone), it->file_size(gone)});
    }
  }
  std::ranges::sort(found, {}, &Found::time);
  for (Found& f : found) {
    auto tokens = runner_.saved_tokens(f.path);
    if (tokens && !tokens->empty() && f.path == path_for(*tokens)) {
      held_[f.path] = {f.bytes, ++uses_};
      files_.push_back({std::move(f.path), std::move(*tokens)});
    } else {
      remove(f.path, tokens ? f.path.string() + " holds other tokens than its name says" : tokens.error().message);
    }
  }
}

// A name that says what is in it.
fs::path SnapshotStore::path_for(std::span<const int32_t> tokens) const {
  const auto bytes = std::as_bytes(tokens);
  const std::string hash = sha256_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return folder_ / (hash.substr(0, 32) + std::string(kExtension));
}

void SnapshotStore::remove(const fs::path& path, const std::string& why) {
  std::error_code ignored;
  fs::remove(path, ignored);
  reports_.push_back(fmt::format("a snapshot on disk is no good and was removed: {}", why));
  const std::lock_guard lock(mutex_);
  held_.erase(path);
}

uint64_t SnapshotStore::bytes_for(int tokens) const {
  constexpr uint64_t kHeader = 4096;
  return kHeader + runner_.state_bytes() + uint64_t(tokens) * token_bytes_;
}

bool SnapshotStore::ready(int tokens) const {
  const std::lock_guard lock(mutex_);
  return !failed_ && !busy_ && !news_ && bytes_for(tokens) <= limit_;
}

void SnapshotStore::write(std::shared_ptr<const Sequence> snapshot) {
  const std::lock_guard lock(mutex_);
  CHECK(!busy_ && !news_, "two snapshots are written at a time");
  busy_ = true;
  job_ = std::move(snapshot);
  changed_.notify_all();
}

std::optional<SnapshotStore::News> SnapshotStore::news() {
  const std::lock_guard lock(mutex_);
  if (news_ && !news_->path) failed_ = true;
  return std::exchange(news_, std::nullopt);
}

std::optional<SnapshotStore::News> SnapshotStore::wait() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_; });
  }
  return news();
}

void SnapshotStore::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || job_ != nullptr; });
    if (job_ == nullptr) return;
    auto snapshot = std::exchange(job_, nullptr);
    lock.unlock();
    News news = store(std::move(snapshot));
    lock.lock();
    news_ = std::move(news);
    busy_ = false;
    changed_.notify_all();
    lock.unlock();
    on_news_();
    lock.lock();
  }
}

SnapshotStore::News SnapshotStore::store(std::shared_ptr<const Sequence> snapshot) {
  const fs::path own = path_for(snapshot->tokens());
  News out{std::move(snapshot), own, {}};
  const uint64_t bytes = bytes_for(out.snapshot->position());
  {
    const std::lock_guard lock(mutex_);
    uint64_t sum = bytes;
    for (const auto& [path, held] : held_) sum += held.bytes;
    while (sum > limit_ && !held_.empty()) {
      const auto oldest = std::ranges::min_element(held_, {}, [](const auto& h) { return h.second.used; });
      sum -= oldest->second.bytes;
      out.removed.push_back(oldest->first);
      held_.erase(oldest);
    }
  }
  std::error_code ignored;
  for (const fs::path& path : out.removed) fs::remove(path, ignored);
  if (const auto saved = runner_.save(*out.snapshot, own); !saved) {
    out.path = tl::unexpected<Error>(saved.error());
    return out;
  }
  const std::lock_guard lock(mutex_);
  held_[own] = {fs::file_size(own, ignored), ++uses_};
  return out;
}

Result<std::unique_ptr<Sequence>> SnapshotStore::load(const fs::path& path) {
  auto sequence = runner_.load(path);
  // The name is that of the content, so it is the state of the tokens that it was filed under.
  if (sequence && path != path_for((*sequence)->tokens())) {
    sequence = fail(Error::Code::kIo, fmt::format("{} holds other tokens than its name says", path.string()));
  }
  if (!sequence) {
    const Error::Code code = sequence.error().code;  // kNotFound: the writer has just taken it away
    if (code != Error::Code::kMemory && code != Error::Code::kNotFound) remove(path, sequence.error().message);
    return sequence;
  }
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  const std::lock_guard lock(mutex_);
  if (const auto found = held_.find(path); found != held_.end()) found->second.used = ++uses_;
  return sequence;
}

int SnapshotStore::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(held_.size());
}

uint64_t SnapshotStore::bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [path, held] : held_) sum += held.bytes;
  return sum;
}

}  // namespace calla
