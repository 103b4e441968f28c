#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>

#include "app/command.h"
#include "app/input.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

struct Options {
  std::filesystem::path model;
  std::filesystem::path file = "-";
  bool special = false;
};

Result<void> tokenize(const Options& options) {
  CALLA_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(options.model));
  CALLA_ASSIGN(const std::string text, read_input(options.file));
  std::vector<int32_t> ids;
  if (options.special) {
    ids = tokenizer.encode_official(text);
  } else {
    tokenizer.encode(text, ids);
  }
  fmt::print("[{}]\n", fmt::join(ids, ", "));
  return {};
}

}  // namespace

void add_tokenize(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  app.add_option("--model", options->model, "The model's folder; only its tokenizer.json is needed")
      ->required()
      ->type_name("DIR");
  app.add_option("FILE", options->file, "The text, UTF-8; standard input if absent or -")->type_name("");
  app.add_flag("--special", options->special, "Turn markers such as <|im_end|> in the text into their control tokens");
  app.callback([options, &run] { run = [options] { return tokenize(*options); }; });
}

}  // namespace calla
