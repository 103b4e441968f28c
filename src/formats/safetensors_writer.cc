#include "formats/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file.h"

namespace calla {
namespace {

namespace fs = std::filesystem;
constexpr size_t kAlign = 64;

tl::unexpected<Error> io_error(const fs::path& path, int error) {
  return fail(Error::Code::kIo,
              fmt::format("cannot write {}: {}", path.string(), std::generic_category().message(error)));
}

// Reserves the disk space; 0, or the error. File systems that cannot reserve just get the size.
int reserve(int fd, uint64_t bytes) {
#ifdef __linux__
  if (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return 0;
  if (errno != EOPNOTSUPP && errno != EINTR) return errno;
#endif
  return ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

}  // namespace

uint64_t TensorSpec::bytes() const {
  uint64_t n = dtype_bytes(dtype);
  for (const int64_t dim : shape) n *= static_cast<uint64_t>(dim);
  return n;
}

std::string safetensors_header(std::span<const TensorSpec> tensors,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    const uint64_t end = at + tensor.bytes();
    header.push_back(
        {tensor.name, {{"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, end}}}});
    at = end;
  }
  std::string json = header.dump();
  json.append((kAlign - (sizeof(uint64_t) + json.size()) % kAlign) % kAlign, ' ');
  const uint64_t length = json.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + json;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const fs::path& path, std::vector<TensorSpec> tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer;
  writer.path_ = path;
  writer.temp_ = path.string() + ".part";
  writer.tensors_ = std::move(tensors);
  const std::string header = safetensors_header(writer.tensors_, metadata);
  uint64_t at = header.size();
  for (const TensorSpec& tensor : writer.tensors_) {
    writer.starts_.push_back(at);
    at += tensor.bytes();
  }
  writer.fd_ = ::open(writer.temp_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer.fd_ < 0) return io_error(path, errno);
  if (const int error = reserve(writer.fd_, at); error != 0) return io_error(path, error);
  if (::pwrite(writer.fd_, header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()))
    return io_error(path, errno);
  return writer;
}

Result<void> SafetensorsWriter::write(size_t tensor, uint64_t offset, std::span<const std::byte> data) const {
  CHECK(tensor < tensors_.size() && offset + data.size() <= tensors_[tensor].bytes(), "write outside of the tensor");
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t n =
        ::pwrite(fd_, data.data() + done, data.size() - done, static_cast<off_t>(starts_[tensor] + offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return io_error(path_, n < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<void> SafetensorsWriter::commit() {
  if (::fsync(fd_) != 0) return io_error(path_, errno);
  if (::close(std::exchange(fd_, -1)) != 0) return io_error(path_, errno);
  if (::rename(temp_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temp_.c_str());
    return io_error(path_, error);
  }
  return sync_folder(path_.parent_path());
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temp_.c_str());
}

void SafetensorsWriter::swap(SafetensorsWriter& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(temp_, o.temp_);
  std::swap(tensors_, o.tensors_);
  std::swap(starts_, o.starts_);
  std::swap(fd_, o.fd_);
}

Result<void> write_safetensors(const fs::path& path, std::span<const TensorData> tensors) {
  std::vector<TensorSpec> specs;
  for (const TensorData& t : tensors) specs.push_back({t.name, t.dtype, t.shape});
  CALLA_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::create(path, std::move(specs)));
  for (size_t i = 0; i < tensors.size(); ++i) CALLA_TRY(writer.write(i, 0, tensors[i].data));
  return writer.commit();
}

}  // namespace calla
