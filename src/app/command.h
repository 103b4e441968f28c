#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace CLI {
class App;
}

namespace calla {

// Exit codes of the program.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;        // the work failed
inline constexpr int kExitUsage = 2;          // the command line was wrong
inline constexpr int kExitInterrupted = 130;  // stopped by Ctrl-C, as shells count it

// A subcommand adds its options to `app` and leaves its work in `run`; main() calls the one that was asked for.
// An Error that `run` returns is printed as one line, "calla: …".
using Run = std::function<Result<void>()>;

void add_tokenize(CLI::App& app, Run& run);
void add_render(CLI::App& app, Run& run);
void add_quantize(CLI::App& app, Run& run);
void add_synth(CLI::App& app, Run& run);
void add_eval(CLI::App& app, Run& run);
void add_run(CLI::App& app, Run& run);
void add_chat(CLI::App& app, Run& run);
void add_serve(CLI::App& app, Run& run);
void add_doctor(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);

}  // namespace calla
