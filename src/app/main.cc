#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>

#include "app/command.h"
#include "base/file.h"

namespace calla {
namespace {

int main_checked(int argc, char** argv) {
  CLI::App app{"Calla runs Qwen3.6-35B-A3B on your own machine."};
  app.set_version_flag("--version", "calla " CALLA_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Without a model of your own, every command uses Bud, the tiny model that comes with Calla.\n"
      "`calla COMMAND --help` explains each command.");
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write()
  report_lost_files();
  Run run;
  add_tokenize(*app.add_subcommand("tokenize", "Show the token ids of a text"), run);
  add_run(*app.add_subcommand("run", "Answer one prompt"), run);
  add_chat(*app.add_subcommand("chat", "Talk to the model"), run);
  add_serve(*app.add_subcommand("serve", "Serve the model over HTTP, as OpenAI's and Anthropic's APIs"), run);
  add_doctor(*app.add_subcommand("doctor", "Examine the machine, the kernels and the model"), run);
  add_bench(*app.add_subcommand("bench", "Measure speeds against what the machine can do, and against others"), run);
  add_eval(*app.add_subcommand("eval", "Measure what the model computes"), run);
  add_render(*app.add_subcommand("render", "Show the prompt that a chat request becomes"), run);
  add_quantize(*app.add_subcommand("quantize", "Turn a bf16 checkpoint into the 4-bit form that runs"), run);
  add_synth(*app.add_subcommand("synth", "Write a checkpoint with random weights, for tests and benchmarks"), run);
  // CLI11 would only say that a command is missing.
  if (argc > 1 && argv[1][0] != '-' &&
      app.get_subcommands([&](CLI::App* c) { return c->get_name() == argv[1]; }).empty()) {
    std::fprintf(stderr, "calla: there is no command \"%s\" (try --help)\n", argv[1]);
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help and --version
    std::fprintf(stderr, "calla: %s (try --help)\n", e.what());
    return kExitUsage;
  }
  const Result<void> result = run();
  if (result) return kExitOk;
  if (result.error().code == Error::Code::kCancelled) return kExitInterrupted;
  std::fprintf(stderr, "calla: %s\n", result.error().message.c_str());
  return kExitFailure;
}

}  // namespace
}  // namespace calla

int main(int argc, char** argv) {
  try {
    return calla::main_checked(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "calla: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "calla: internal error: %s\n", e.what());
  }
  return calla::kExitFailure;
}
