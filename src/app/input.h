#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace calla {

// The content of a file, or of standard input for "-".
Result<std::string> read_input(const std::filesystem::path& path);

}  // namespace calla
