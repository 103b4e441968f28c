#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/session.h"
#include "app/command.h"
#include "app/console.h"
#include "app/model_options.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/progress.h"
#include "engine/model.h"
#include "engine/request_options.h"
#include "engine/service.h"
#include "server/http.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/page.h"
#include "server/page_api.h"
#include "server/router.h"
#include "server/routes.h"
#include "server/security.h"
#include "store/conversations.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

struct Options {
  ModelOptions model;
  AccessOptions access;
  int port = 8080;
  int sequences = 4;
  int queue = 256;
  std::optional<int> cache_memory;  // MiB
  int cache_disk = 16384;           // MiB
  std::string cache_dir;
  int grace = 30;
  std::optional<bool> thinking;
  LogLevel log_level = LogLevel::kInfo;
  bool log_json = false;
};

// SIGINT and SIGTERM as bytes of a pipe, which one thread can wait for.
class StopSignals {
 public:
  StopSignals() {
    if (::pipe2(pipe_.data(), O_CLOEXEC | O_NONBLOCK) != 0) pipe_ = {-1, -1};
    written_ = pipe_[1];
    struct sigaction action {};
    action.sa_handler = [](int) {
      const char byte = 0;
      // A full pipe has been told often enough.
      if (::write(written_, &byte, 1) < 0) return;
    };
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // The process is about to end: the handlers stay, and write into nothing.
  ~StopSignals() = default;

  // True: a signal came. False: none did for so long; negative: waits for ever.
  bool wait(int milliseconds) const {
    pollfd p{pipe_[0], POLLIN, 0};
    while (::poll(&p, 1, milliseconds) < 0) {
    }
    char byte = 0;
    return ::read(pipe_[0], &byte, 1) == 1;
  }

 private:
  std::array<int, 2> pipe_{-1, -1};
  static inline int written_ = -1;
};

std::string describe(const MemoryPlan& plan, const Options& o, int context, uint64_t snapshots) {
  return fmt::format(
      "memory{}: weights {} ({}), keys and values {} for {} x {} tokens, states {}, snapshots up to {}, scratch {}; "
      "{} available\n",
      plan.on_gpu ? " of the GPU" : "", format_bytes(plan.weights),
      plan.on_gpu || o.model.runner.load.load == Load::kResident ? "copied" : "mapped", format_bytes(plan.kv),
      o.sequences, context, format_bytes(plan.recurrent), format_bytes(snapshots), format_bytes(plan.scratch),
      format_bytes(plan.on_gpu ? plan.available : available_memory()));
}

// What a person does next.
std::string greeting(const std::string& model, const std::string& url, bool key) {
  const std::string token = key ? "$CALLA_API_KEY" : "none";
  return fmt::format(
      "\n{0} is served at {1}\n\n"
      "  a page to chat     {1}/\n"
      "  OpenAI's API       {1}/v1\n"
      "  Anthropic's API    {1}\n"
      "  state              {1}/health, {1}/metrics\n\n"
      "Try it:\n"
      "  curl {1}/v1/chat/completions -H 'Content-Type: application/json'{3} \\\n"
      "       -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello!\"}}]}}'\n"
      "For programs that read their settings from the environment:\n"
      "  export OPENAI_BASE_URL={1}/v1 OPENAI_API_KEY={2}\n"
      "  export ANTHROPIC_BASE_URL={1} ANTHROPIC_AUTH_TOKEN={2}\n"
      "Settings of opencode, Codex, Claude Code and others: docs/clients.md. Ctrl-C ends the server.\n\n",
      model, url, token, key ? " -H \"Authorization: Bearer $CALLA_API_KEY\"" : "");
}

std::string url_of(const std::string& host, int port) {
  const std::string name = host == "0.0.0.0" || host == "::" ? "localhost" : host;
  const bool v6 = name.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", name, v6 ? "]" : "", port);
}

// The last part of a folder or of a repository's id.
std::string model_id(const Options& o, const Model& model) {
  std::error_code ignored;
  if (o.model.is_bud() || fs::is_directory(o.model.model, ignored)) return model.name();
  return o.model.model;
}

// What snapshots may take beside the plan: what was asked for, or a quarter of the rest, at most 2 GiB.
Result<uint64_t> snapshot_bytes(const Options& o, const MemoryPlan& plan) {
  const uint64_t available = plan.on_gpu ? plan.available : available_memory();
  const uint64_t rest = available > plan.needed() ? available - plan.needed() : 0;
  if (!o.cache_memory) return std::min(uint64_t{2} << 30, rest / 4);
  const uint64_t wanted = static_cast<uint64_t>(*o.cache_memory) << 20;
  if (wanted <= rest) return wanted;
  return fail(Error::Code::kMemory,
              fmt::format("--cache-memory {} does not fit: {} are available and {} of them planned; choose less, or a "
                          "smaller --context or --sequences",
                          *o.cache_memory, format_bytes(available), format_bytes(plan.needed())));
}

Result<void> serve(Options o) {
  keep_heap_flat();
  CALLA_ASSIGN(Access access, Access::make(o.access));
  CALLA_ASSIGN(const fs::path folder, model_folder(o.model.model));
  o.model.runner.sequences = o.sequences;
  ServiceOptions service_options;
  service_options.running = o.sequences;
  service_options.queue = o.queue;
  service_options.cache_dir = o.cache_dir;
  service_options.cache_bytes = static_cast<uint64_t>(o.cache_disk) << 20;
  CALLA_ASSIGN(const auto model, Model::open(folder, runner_options(o.model)));
  const MemoryPlan& plan = model->runner().plan();
  CALLA_ASSIGN(const uint64_t snapshots, snapshot_bytes(o, plan));
  service_options.snapshot_bytes = snapshots;

  Log log(o.log_level, o.log_json, stderr);
  service_options.log = [&log](const std::string& line) { log.write(LogLevel::kInfo, 0, line); };
  CALLA_ASSIGN(const auto service, Service::start(*model, std::move(service_options)));
  RequestMetrics metrics;
  Router router(std::move(access), log, metrics, error_response);
  // Requests may come before start() has returned.
  std::atomic<const HttpServer*> listening = nullptr;
  ApiOptions api_options;
  api_options.name = model_id(o, *model);
  api_options.defaults = {default_options(*model), o.thinking};
  // Bud is too small to think unless it is asked to.
  if (!o.thinking && o.model.is_bud()) api_options.defaults.thinking = false;
  const std::string name = api_options.name;
  CALLA_ASSIGN(const auto api, Api::create(*model, *service, std::move(api_options)));
  const Serving serving{*api, *model, *service, metrics, name, std::time(nullptr), [&listening] {
                          const HttpServer* http = listening;
                          return http != nullptr ? http->stats() : HttpStats{};
                        }};
  add_routes(router, serving);
  PageApi page_api(conversations_file());
  page_api.add_to(router);
  add_page(router);

  HttpOptions http;
  http.host = o.access.host;
  http.port = o.port;
  http.admit = [&router](const HttpRequest& head) { return router.admit(head); };
  http.refuse = [&router](int status, std::string message, std::string_view path) {
    return router.refuse(status, std::move(message), path);
  };
  const StopSignals signals;
  CALLA_ASSIGN(auto server,
               HttpServer::start(std::move(http), [&router](HttpRequest request, std::shared_ptr<HttpReply> reply) {
                 router.handle(std::move(request), std::move(reply));
               }));
  listening = server.get();
  CALLA_TRY(write_stdout(describe(plan, o, model->runner().context(), snapshots) +
                         greeting(name, url_of(o.access.host, server->port()), !o.access.api_key.empty())));

  signals.wait(-1);
  server->drain();
  log.write(LogLevel::kInfo, 0, "stopping",
            {{"unanswered", int64_t{server->stats().answering}}, {"seconds", int64_t{o.grace}}});
  const auto start = Clock::now();
  while (server->stats().answering > 0 && seconds_since(start) < o.grace && !signals.wait(100)) {
  }
  listening = nullptr;
  server.reset();
  service->stop(false);
  return {};
}

}  // namespace

void add_serve(CLI::App& app, Run& run) {
  auto o = std::make_shared<Options>();
  app.footer(
      "Only programs on this machine can reach the server, and only pages that it serves itself may read its answers.\n"
      "For other machines, give an address and a key:\n\n"
      "  CALLA_API_KEY=$(openssl rand -hex 16) calla serve --host 0.0.0.0\n\n"
      "docs/server.md explains the endpoints and limits, docs/clients.md has settings for the usual clients.");
  const auto positional = app.add_option("MODEL", o->model.model, "The same as --model")->type_name("");
  add_model_options(app, o->model);
  positional->excludes("--model");
  add_thinking_flags(app, o->thinking);

  constexpr const char* kWho = "Who may ask";
  o->access.host = "localhost";
  app.add_option("--host", o->access.host,
                 "The address to listen on: localhost (the default: both loopback addresses), 0.0.0.0 (all of IPv4), "
                 ":: (all) or one of this machine's. Beyond the loopback a key is needed")
      ->type_name("ADDRESS")
      ->group(kWho);
  app.add_option("--port", o->port, "The port (default: 8080; 0: any free one)")
      ->type_name("N")
      ->check(CLI::Range(0, 65535))
      ->group(kWho);
  app.add_option("--api-key", o->access.api_key,
                 "A key that every request must carry, as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\". Other "
                 "users of this machine see command lines: prefer the environment")
      ->envname("CALLA_API_KEY")
      ->type_name("KEY")
      ->group(kWho);
  app.add_option("--allow-host", o->access.allow_hosts,
                 "A further host name by which clients may call this server, such as box.local")
      ->type_name("NAME")
      ->group(kWho);
  app.add_option("--allow-origin", o->access.allow_origins,
                 "An origin whose pages in a browser may use this server, such as http://localhost:3000; \"*\" is any")
      ->type_name("ORIGIN")
      ->group(kWho);

  constexpr const char* kLoad = "Load";
  app.add_option("--sequences", o->sequences,
                 "Answers that are computed at once, each with a whole context (default: 4)")
      ->type_name("N")
      ->check(CLI::Range(1, 256))
      ->group(kLoad);
  app.add_option("--queue", o->queue, "Requests that may wait; more are refused with 503 (default: 256)")
      ->type_name("N")
      ->check(CLI::Range(1, 100000))
      ->group(kLoad);
  app.add_option("--cache-memory", o->cache_memory,
                 "MiB for the states of snapshots of prompts, from which later requests start (default: a quarter of "
                 "what is left, at most 2048)")
      ->type_name("MIB")
      ->check(CLI::Range(0, 1 << 20))
      ->group(kLoad);
  app.add_option("--cache-dir", o->cache_dir,
                 "A folder where snapshots outlive the program. They hold what users wrote: keep it private")
      ->type_name("DIR")
      ->group(kLoad);
  app.add_option("--cache-disk", o->cache_disk, "MiB that this folder may take (default: 16384)")
      ->type_name("MIB")
      ->check(CLI::Range(1, 1 << 24))
      ->group(kLoad);
  app.add_option("--grace", o->grace, "Seconds that running answers get when the server is stopped (default: 30)")
      ->type_name("N")
      ->check(CLI::Range(0, 3600))
      ->group(kLoad);

  constexpr const char* kLog = "Log";
  static const std::map<std::string, LogLevel> kLevels = {{"error", LogLevel::kError},
                                                          {"warning", LogLevel::kWarning},
                                                          {"info", LogLevel::kInfo},
                                                          {"debug", LogLevel::kDebug}};
  app.add_option("--log-level", o->log_level, "error, warning, info (one line a request; the default) or debug")
      ->type_name("LEVEL")
      ->transform(CLI::CheckedTransformer(kLevels).description(""))
      ->group(kLog);
  app.add_flag("--log-json", o->log_json, "Each line of the log is a JSON object")->group(kLog);
  app.callback([o, &run] { run = [o] { return serve(*o); }; });
}

}  // namespace calla
