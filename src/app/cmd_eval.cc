#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "app/command.h"
#include "app/console.h"
#include "app/input.h"
#include "app/model_options.h"
#include "base/file.h"
#include "base/progress.h"
#include "engine/runner.h"
#include "text/chat_json.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRowsAtOnce = 64;  // of logits in memory: 64 MB with the full vocabulary

struct Options {
  ModelOptions model;
  std::string ids, out;
};

Result<std::vector<int32_t>> read_ids(const std::string& path) {
  CALLA_ASSIGN(const std::string text, read_input(path));
  const auto json = parse_json(text);
  if (!json) return invalid(fmt::format("{}: {}", path, json.error().message));
  if (!json->is_array() || json->empty()) return invalid(fmt::format("{} must be a JSON list of token ids", path));
  std::vector<int32_t> ids;
  for (const auto& id : *json) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      return invalid(fmt::format("{}: element {} is not a token id", path, ids.size()));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// A safetensors file of one f32 tensor, written row by row: whole texts have more logits than fit in memory. It appears
// under its name only when it is complete.
class LogitsFile {
 public:
  static Result<LogitsFile> create(const fs::path& path, size_t rows, size_t cols) {
    static_assert(std::endian::native == std::endian::little, "the file is little-endian");
    std::string header = fmt::format(R"({{"logits":{{"dtype":"F32","shape":[{},{}],"data_offsets":[0,{}]}}}})", rows,
                                     cols, rows * cols * sizeof(float));
    header.resize((header.size() + 7) / 8 * 8, ' ');
    LogitsFile f;
    f.path_ = path;
    f.temp_ = fmt::format("{}.{}.part", path.string(), ::getpid());
    f.file_.reset(std::fopen(f.temp_.c_str(), "wbe"));
    if (f.file_ == nullptr) return f.error();
    const uint64_t size = header.size();
    if (std::fwrite(&size, sizeof size, 1, f.file_.get()) != 1 ||
        std::fwrite(header.data(), header.size(), 1, f.file_.get()) != 1) {
      return f.error();
    }
    return f;
  }
  LogitsFile(LogitsFile&&) = default;
  ~LogitsFile() {
    if (file_ != nullptr) ::unlink(temp_.c_str());
  }

  Result<void> append(std::span<const float> logits) {
    if (std::fwrite(logits.data(), sizeof(float), logits.size(), file_.get()) != logits.size()) return error();
    return {};
  }
  Result<void> finish() {
    if (std::fflush(file_.get()) != 0 || ::rename(temp_.c_str(), path_.c_str()) != 0) return error();
    file_.reset();
    return {};
  }

 private:
  LogitsFile() = default;
  tl::unexpected<Error> error() const {
    return fail(Error::Code::kIo,
                fmt::format("cannot write {}: {}", path_.string(), std::generic_category().message(errno)));
  }
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  fs::path path_;
  std::string temp_;
  std::unique_ptr<std::FILE, Close> file_;
};

Result<void> eval_logits(const Options& o) {
  CALLA_ASSIGN(const std::vector<int32_t> ids, read_ids(o.ids));
  CALLA_ASSIGN(const fs::path folder, model_folder(o.model.model));
  RunnerOptions options = runner_options(o.model);
  if (options.context == 0) options.context = static_cast<int>(ids.size());
  CALLA_ASSIGN(const auto runner, open_runner(folder, options));
  CALLA_ASSIGN(const auto sequence, runner->start());
  const size_t vocab = runner->config().vocab;
  CALLA_ASSIGN(LogitsFile out, LogitsFile::create(o.out, ids.size(), vocab));
  Progress progress("scoring", ids.size(), Progress::Unit::kItems);
  std::vector<float> logits;
  for (size_t at = 0; at < ids.size(); at += kRowsAtOnce) {
    const Step step{sequence.get(), std::span(ids).subspan(at, std::min(kRowsAtOnce, ids.size() - at)),
                    Step::Logits::kAll};
    CALLA_TRY(runner->forward({&step, 1}, logits));
    CALLA_TRY(out.append(logits));
    progress.advance(step.tokens.size());
  }
  CALLA_TRY(out.finish());
  fmt::print(stderr, "{}: logits of {} tokens, {} each\n", o.out, ids.size(), vocab);
  return {};
}

void add_logits(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  app.add_option("--ids", o->ids, "A JSON list of token ids; - is standard input")->required()->type_name("FILE");
  app.add_option("--out", o->out, "The file to write")->required()->type_name("FILE");
  add_model_options(app, o->model);
  app.footer(R"(Examples:
  calla eval logits --ids ids.json --out logits.safetensors
  echo "Once upon a time" | calla tokenize --model DIR | calla eval logits --model DIR --backend reference --ids - --out ref.safetensors

Writes one tensor, "logits", f32 [tokens, vocabulary]: row i follows tokens 0 to i.)");
  app.callback([o, &run] { run = [o] { return eval_logits(*o); }; });
}

}  // namespace

void add_eval(CLI::App& app, Run& run) {
  app.require_subcommand(1);
  add_logits(*app.add_subcommand("logits", "Write the logits of given tokens to a safetensors file"), run);
}

}  // namespace calla
