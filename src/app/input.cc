#include "app/input.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/file.h"

namespace calla {

Result<std::string> read_input(const std::filesystem::path& path) {
  constexpr size_t kMost = 64 << 20;
  if (path != "-") return read_file(path, kMost);
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n == 0) return content;
    if (n > 0) {
      content.append(buffer, static_cast<size_t>(n));
      if (content.size() > kMost)
        return invalid(fmt::format("standard input has more than the limit of {} bytes", kMost));
    } else if (errno != EINTR) {
      return fail(Error::Code::kIo,
                  fmt::format("cannot read standard input: {}", std::generic_category().message(errno)));
    }
  }
}

}  // namespace calla
