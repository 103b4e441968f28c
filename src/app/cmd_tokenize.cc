#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "app/command.h"
#include "app/input.h"
#include "app/model_options.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

struct Options {
  std::string model;
  std::filesystem::path file = "-";
  bool special = false;
  bool jsonl = false;
};

void print_ids(const Tokenizer& tokenizer, std::string_view text, bool special) {
  std::vector<int32_t> ids;
  if (special) {
    ids = tokenizer.encode_official(text);
  } else {
    tokenizer.encode(text, ids);
  }
  fmt::print("[{}]\n", fmt::join(ids, ", "));
}

Result<void> tokenize(const Options& options) {
  CALLA_ASSIGN(const auto folder, tokenizer_folder(options.model));
  CALLA_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(folder));
  CALLA_ASSIGN(const std::string text, read_input(options.file));
  if (!options.jsonl) {
    print_ids(tokenizer, text, options.special);
    return {};
  }
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_string()) return invalid(fmt::format("line {} is not a JSON string", number));
    print_ids(tokenizer, json.get_ref<const std::string&>(), options.special);
  }
  return {};
}

}  // namespace

void add_tokenize(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  app.footer(
      "By default the text is plain: \"<|im_end|>\" in it is ten characters, as it is in a chat when a user types it.\n"
      "With --special such markers become control tokens, as Hugging Face's tokenizers reads a raw prompt.\n\n"
      "  echo -n 'Hello, world!' | calla tokenize --model DIR");
  app.add_option(
         "--model", options->model,
         "The model's folder, or its id in the Hugging Face cache; only tokenizer.json is needed (default: Bud)")
      ->type_name("DIR|ID");
  app.add_option("FILE", options->file, "The text, UTF-8; standard input if absent or -")->type_name("");
  app.add_flag("--special", options->special, "Turn markers such as <|im_end|> in the text into their control tokens");
  app.add_flag("--jsonl", options->jsonl, "Each line is a JSON string; print one array for each");
  app.callback([options, &run] { run = [options] { return tokenize(*options); }; });
}

}  // namespace calla
