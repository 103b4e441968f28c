#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/progress.h"

namespace calla {
namespace {

tl::unexpected<Error> io_error(const char* what, const std::filesystem::path& path, int error) {
  const auto code = error == ENOENT ? Error::Code::kNotFound : Error::Code::kIo;
  return fail(code, fmt::format("{} {}: {}", what, path.string(), std::generic_category().message(error)));
}

struct Fd {
  explicit Fd(int f) : fd(f) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd >= 0) ::close(fd);
  }
  int fd;
};

constexpr size_t kHugePage = size_t{2} << 20;

size_t page_size() {
  static const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

std::string lost(const std::filesystem::path& path) {
  return fmt::format("cannot read {}: it became shorter since it was opened, or its disk fails", path.string());
}

Result<struct stat> stat_regular(int fd, const std::filesystem::path& path) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return io_error("cannot read", path, errno);
  if (!S_ISREG(st.st_mode)) return fail(Error::Code::kIo, fmt::format("{} is not a regular file", path.string()));
  return st;
}

}  // namespace

Result<std::string> read_file(const std::filesystem::path& path, uint64_t limit) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) return io_error("cannot open", path, errno);
  CALLA_ASSIGN(const struct stat st, stat_regular(file.fd, path));
  if (static_cast<uint64_t>(st.st_size) > limit) {
    return fail(Error::Code::kInvalid,
                fmt::format("{} has {} bytes, more than the limit of {}", path.string(), st.st_size, limit));
  }
  std::string content(static_cast<size_t>(st.st_size), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::read(file.fd, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("cannot read", path, errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  content.resize(done);
  return content;
}

Result<void> write_file(const std::filesystem::path& path, std::string_view content) {
  std::string temp = path.string() + ".XXXXXX";
  const Fd file(::mkostemp(temp.data(), O_CLOEXEC));
  if (file.fd < 0) return io_error("cannot write", path, errno);
  auto give_up = [&](int error) {
    ::unlink(temp.c_str());
    return io_error("cannot write", path, error);
  };
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::write(file.fd, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return give_up(errno);
    done += static_cast<size_t>(n);
  }
  if (::fchmod(file.fd, 0644) != 0 || ::fsync(file.fd) != 0) return give_up(errno);
  if (::rename(temp.c_str(), path.c_str()) != 0) return give_up(errno);
  return sync_folder(path.parent_path());
}

Result<void> sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path name = folder.empty() ? "." : folder;
  const Fd fd(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a folder, and then need not.
  if (fd.fd < 0 || (::fsync(fd.fd) != 0 && errno != EINVAL)) return io_error("cannot sync", name, errno);
  return {};
}

void will_need(std::span<const std::byte> mapped) {
  const uintptr_t page = page_size();
  const auto begin = reinterpret_cast<uintptr_t>(mapped.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(mapped.data() + mapped.size());
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

void done_with(std::span<const std::byte> mapped) {
  // Only whole pages: the rest belongs to neighbours too.
  const uintptr_t page = page_size();
  const auto begin = (reinterpret_cast<uintptr_t>(mapped.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(mapped.data() + mapped.size()) / page * page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

namespace {

// Address space for `size` bytes and, where that may matter, aligned to huge pages. MAP_FAILED: there is none.
void* reserve(size_t size) {
  const size_t room = size >= kHugePage ? size + kHugePage : size;
  void* const all = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED || room == size) return all;
  auto* const begin = static_cast<std::byte*>(all);
  const size_t before = -reinterpret_cast<uintptr_t>(begin) % kHugePage;
  if (before > 0) ::munmap(begin, before);
  std::byte* const end = begin + before + (size + page_size() - 1) / page_size() * page_size();
  if (end < begin + room) ::munmap(end, begin + room - end);
  return begin + before;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  MappedFile mapped;
  mapped.path_ = path;
  mapped.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (mapped.fd_ < 0) return io_error("cannot open", path, errno);
  CALLA_ASSIGN(const struct stat st, stat_regular(mapped.fd_, path));
  const auto size = static_cast<size_t>(st.st_size);
  if (size == 0) return mapped;
  void* const place = reserve(size);
  if (place == MAP_FAILED) return io_error("cannot map", path, errno);
  mapped.data_ = static_cast<const std::byte*>(place);
  mapped.size_ = size;
  if (::mmap(place, size, PROT_READ, MAP_SHARED | MAP_FIXED, mapped.fd_, 0) == MAP_FAILED) {
    return io_error("cannot map", path, errno);
  }
  ::madvise(place, size, MADV_HUGEPAGE);  // only a hint: not every system has them
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

void MappedFile::swap(MappedFile& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(fd_, o.fd_);
  std::swap(path_, o.path_);
}

std::span<std::byte> MappedFile::pages(std::span<const std::byte> part) const {
  DCHECK(part.data() >= data_ && part.data() + part.size() <= data_ + size_, "a part that is not of this file");
  const size_t page = page_size(), first = part.data() - data_, begin = first / page * page;
  const size_t end = std::min((first + part.size() + page - 1) / page * page, size_);
  return {const_cast<std::byte*>(data_) + begin, end - begin};
}

Result<void> MappedFile::populate(std::span<const std::byte> part) const {
  const std::span<std::byte> all = pages(part);
  while (::madvise(all.data(), all.size(), MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EFAULT) return fail(Error::Code::kIo, lost(path_));
    if (errno != EINVAL) return io_error("cannot read", path_, errno);
    ::madvise(all.data(), all.size(), MADV_WILLNEED);  // Linux before 5.14
    break;
  }
  return {};
}

Result<void> MappedFile::prepare_memory(std::span<const std::byte> part) const {
  const std::span<std::byte> all = pages(part);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  if (::mmap(all.data(), all.size(), PROT_READ | PROT_WRITE, kFlags, -1, 0) == MAP_FAILED) {
    return io_error("no memory to read", path_, errno);
  }
  ::madvise(all.data(), all.size(), MADV_HUGEPAGE);
  return {};
}

Result<void> MappedFile::read_into_memory(std::span<const std::byte> piece) const {
  for (std::span<std::byte> left = pages(piece); !left.empty();) {
    const ssize_t n = ::pread(fd_, left.data(), left.size(), left.data() - data_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("cannot read", path_, errno);
    if (n == 0) return fail(Error::Code::kIo, lost(path_));
    left = left.subspan(static_cast<size_t>(n));
  }
  return {};
}

Result<void> MappedFile::lock(std::span<const std::byte> part) const {
  const std::span<std::byte> all = pages(part);
  if (::mlock(all.data(), all.size()) == 0) return {};
  if (errno != ENOMEM && errno != EPERM && errno != EAGAIN) return io_error("cannot lock in memory", path_, errno);
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return fail(Error::Code::kMemory,
              fmt::format("cannot lock {} of {} in memory: this process may lock {} KiB; raise the limit "
                          "(ulimit -l unlimited, or LimitMEMLOCK=infinity of a service)",
                          format_bytes(all.size()), path_.string(), limit.rlim_cur / 1024));
}

void report_lost_files() {
  struct sigaction action {};
  action.sa_handler = [](int) {
    constexpr std::string_view kLine = "calla: a file of the model became shorter or could not be read\n";
    [[maybe_unused]] const ssize_t written = ::write(2, kLine.data(), kLine.size());
    ::_exit(1);
  };
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace calla
