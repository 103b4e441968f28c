#pragma once

#include <atomic>
#include <string>

#include "base/result.h"

namespace calla {

// What a shell command printed to standard output. It runs as a process group of its own with nothing on standard
// input; setting `cancel` ends the group (kCancelled), and so do SIGTERM and SIGHUP to this thread before they take
// effect. Errors: an exit code other than 0, with the last line of what it
// printed to standard error; more than 64 MiB of output.
Result<std::string> run_command(const std::string& command, const std::atomic<bool>& cancel);

}  // namespace calla
