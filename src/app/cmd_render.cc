#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "app/command.h"
#include "app/input.h"
#include "app/model_options.h"
#include "text/chat_request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string model;
  std::filesystem::path request = "-";
  std::string template_name;
  bool ids = false;
  bool strict = false;
  bool jsonl = false;
};

class Command {
 public:
  explicit Command(const Options& options)
      : options_(options), rules_(options.strict ? ChatRules::kOfficial : ChatRules::kLenient) {}

  Result<void> run() {
    CALLA_TRY(load());
    CALLA_ASSIGN(const std::string input, read_input(options_.request));
    if (!options_.jsonl) {
      CALLA_ASSIGN(const Prompt prompt, render(input));
      if (!options_.ids) {
        fmt::print("{}", prompt.text);
        return {};
      }
      CALLA_ASSIGN(const auto ids, tokenizer_->encode(prompt));
      fmt::print("[{}]\n", fmt::join(ids, ", "));
      return {};
    }
    for (size_t at = 0; at < input.size();) {
      const size_t end = std::min(input.find('\n', at), input.size());
      const auto answer = answer_line(std::string_view(input).substr(at, end - at));
      fmt::print("{}\n", (answer ? *answer : Json{{"error", answer.error().message}}).dump());
      at = end + 1;
    }
    return {};
  }

 private:
  Result<void> load() {
    const bool own_template = options_.template_name.empty();
    std::filesystem::path folder;
    if (own_template || options_.ids) {
      CALLA_ASSIGN(folder, tokenizer_folder(options_.model));
    }
    CALLA_ASSIGN(chat_, own_template ? ChatTemplate::load(folder) : ChatTemplate::named(options_.template_name));
    if (!options_.ids) return {};
    CALLA_ASSIGN(tokenizer_, Tokenizer::load(folder));
    return {};
  }

  Result<Prompt> render(std::string_view request) const {
    CALLA_ASSIGN(const Conversation conversation, parse_conversation(request, rules_));
    return chat_->render(conversation, rules_);
  }

  // One line of --jsonl's output.
  Result<Json> answer_line(std::string_view request) const {
    CALLA_ASSIGN(const Prompt prompt, render(request));
    if (options_.ids) {
      CALLA_ASSIGN(const auto ids, tokenizer_->encode(prompt));
      return Json{{"ids", ids}};
    }
    Json controls = Json::array();
    for (const Span& c : prompt.controls) controls.push_back({c.offset, c.length});
    return Json{{"text", prompt.text}, {"controls", std::move(controls)}};
  }

  const Options& options_;
  const ChatRules rules_;
  std::optional<ChatTemplate> chat_;
  std::optional<Tokenizer> tokenizer_;
};

constexpr const char* kFooter = R"(
The model never sees messages, only one text with control tokens between the turns. This command prints that text,
which helps when answers are odd: is the system message there, are the tools, was old reasoning dropped?

  echo '{"messages": [{"role": "user", "content": "Hi"}]}' | calla render

Read from the request: messages, tools, add_generation_prompt, reasoning_effort, and chat_template_kwargs with
enable_thinking, preserve_thinking and add_vision_id. Everything else is ignored.)";

}  // namespace

void add_render(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  app.add_option("--model", options->model,
                 "The model's folder, or its id in the Hugging Face cache; only chat template and tokenizer are read "
                 "(default: Bud)")
      ->type_name("DIR|ID");
  app.add_option("REQUEST", options->request,
                 "The body of a chat completions request, as JSON; standard input if absent or -")
      ->type_name("");
  app.add_option("--template", options->template_name,
                 "Use this template instead of the folder's: qwen3.6, qwen3.5 or qwen3.5-small")
      ->type_name("NAME")
      ->check(CLI::IsMember({"qwen3.6", "qwen3.5", "qwen3.5-small"}));
  app.add_flag("--ids", options->ids, "Print the token ids as a JSON array");
  app.add_flag("--strict", options->strict,
               "Refuse what the official template refuses, such as a system message that is not the first");
  app.add_flag("--jsonl", options->jsonl,
               "Each line of the input is a request; each line of the output is its prompt, or its error, as JSON");
  app.footer(kFooter);
  app.callback([&run, options] { run = [options] { return Command(*options).run(); }; });
}

}  // namespace calla
