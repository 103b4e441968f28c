#pragma once

#include <string>
#include <string_view>

namespace calla {

// The SHA-256 of `data` (FIPS 180-4) as 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view data);

}  // namespace calla
