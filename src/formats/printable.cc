#include "formats/printable.h"

#include <fmt/format.h>

namespace calla {

std::string printable(std::string_view name) {
  constexpr size_t kLimit = 160;
  std::string out;
  for (const char c : name.substr(0, kLimit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (name.size() > kLimit) out += "…";
  return out;
}

}  // namespace calla
