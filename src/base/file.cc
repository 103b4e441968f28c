#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

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
  return {};
}

void will_need(std::span<const std::byte> mapped) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(mapped.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(mapped.data() + mapped.size());
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

void done_with(std::span<const std::byte> mapped) {
  // Only whole pages: the rest belongs to neighbours too.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(mapped.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(mapped.data() + mapped.size()) / page * page;
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) return io_error("cannot open", path, errno);
  CALLA_ASSIGN(const struct stat st, stat_regular(file.fd, path));
  MappedFile mapped;
  mapped.path_ = path;
  mapped.size_ = static_cast<size_t>(st.st_size);
  if (mapped.size_ > 0) {
    void* p = ::mmap(nullptr, mapped.size_, PROT_READ, MAP_SHARED, file.fd, 0);
    if (p == MAP_FAILED) return io_error("cannot map", path, errno);
    mapped.data_ = static_cast<const std::byte*>(p);
  }
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::swap(MappedFile& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(path_, o.path_);
}

void MappedFile::will_need(uint64_t offset, uint64_t size) const {
  if (offset >= size_) return;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t first = offset / page * page;
  const uint64_t end = offset + size < size_ ? offset + size : size_;
  ::madvise(const_cast<std::byte*>(data_) + first, end - first, MADV_WILLNEED);
}

}  // namespace calla
