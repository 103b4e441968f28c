#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace calla {

// The content of a file, or of standard input for "-". Refuses more than 64 MiB: nothing that a person gives to a model
// is longer.
Result<std::string> read_input(const std::filesystem::path& path);

}  // namespace calla
