#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/answer.h"
#include "app/command.h"
#include "app/console.h"
#include "app/input.h"
#include "app/model_options.h"
#include "app/sampling_options.h"
#include "base/progress.h"
#include "engine/generate.h"
#include "engine/request_options.h"
#include "text/answer_parser.h"
#include "text/chat_json.h"
#include "text/chat_request.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::optional<std::string> prompt;
  std::string file, request, system;
  std::optional<int> logprobs;
  std::optional<bool> thinking;
  bool raw = false, json = false, quiet = false, hide_thinking = false;
};

// What the model is to continue: raw text, or a conversation; with the request's own sampling fields.
struct Input {
  std::string raw;
  Conversation conversation;
  Json request = Json::object();
};

Result<Input> collect_input(const Options& o) {
  Input input;
  if (!o.request.empty()) {
    CALLA_ASSIGN(const std::string text, read_input(o.request));
    const auto in_file = [&](const Error& e) { return fail(e.code, fmt::format("{}: {}", o.request, e.message)); };
    auto request = parse_json(text);
    if (!request) return in_file(request.error());
    auto conversation = read_conversation(*request);
    if (!conversation) return in_file(conversation.error());
    GenerateOptions ignored;
    if (const auto fields = read_options(*request, ignored); !fields) return in_file(fields.error());
    input.conversation = std::move(*conversation);
    input.request = std::move(*request);
    return input;
  }
  std::string prompt;
  if (o.prompt) {
    prompt = *o.prompt;
  } else {
    CALLA_ASSIGN(prompt, read_input(o.file.empty() ? "-" : o.file));
  }
  if (prompt.find_first_not_of(" \t\r\n") == std::string::npos) return invalid("the prompt is empty");
  if (o.raw) {
    input.raw = std::move(prompt);
    return input;
  }
  auto& messages = input.conversation.messages;
  if (!o.system.empty()) messages.push_back(text_message(ChatRole::kSystem, o.system));
  messages.push_back(text_message(ChatRole::kUser, std::move(prompt)));
  return input;
}

Json to_json(const Model& model, const Generation& g, const std::string& reasoning, const std::string& answer,
             bool logprobs) {
  Json out = {{"model", model.name()},
              {"text", g.text},
              {"reasoning_content", reasoning},
              {"content", answer},
              {"finish_reason", finish_reason_name(g.finish)}};
  if (!g.stop.empty()) out["stop"] = g.stop;
  out["seed"] = g.seed;
  out["usage"] = {{"prompt_tokens", g.prompt_tokens},
                  {"completion_tokens", g.tokens.size()},
                  {"total_tokens", g.prompt_tokens + g.tokens.size()}};
  out["timings"] = {{"prompt_seconds", g.times.prompt_seconds},
                    {"prompt_tokens_per_second", g.prompt_rate()},
                    {"first_token_seconds", g.times.first_seconds},
                    {"decode_seconds", g.times.decode_seconds},
                    {"decode_tokens_per_second", g.decode_rate()}};
  if (!logprobs) return out;
  Json tokens = Json::array();
  for (const Sampled& token : g.tokens) {
    Json json = logprob_json(model.tokenizer(), token);
    json["id"] = token.id;
    for (size_t i = 0; i < token.top.size(); ++i) json["top_logprobs"][i]["id"] = token.top[i].id;
    tokens.push_back(std::move(json));
  }
  out["logprobs"] = std::move(tokens);
  return out;
}

Result<void> run_prompt(const Options& o) {
  CALLA_ASSIGN(Input input, collect_input(o));
  CALLA_ASSIGN(const auto model, open_model(o.model));
  GenerateOptions options = default_options(*model);
  CALLA_TRY(read_options(input.request, options));
  o.sampling.apply(options);
  if (o.logprobs) options.sampling.logprobs = *o.logprobs;
  CALLA_TRY(check_options(options));

  std::vector<int32_t> prompt;
  if (o.raw) {
    prompt = model->tokenizer().encode_official(input.raw);
  } else {
    if (o.thinking) input.conversation.thinking = o.thinking;
    // Bud is too small to think; the real model does unless it is told not to.
    if (!input.conversation.thinking && o.model.is_bud()) input.conversation.thinking = false;
    CALLA_ASSIGN(prompt, model->encode(input.conversation));
  }

  const bool stream = !o.quiet && !o.json;
  AnswerParser parser(!o.raw && model->ends_in_reasoning(prompt));
  AnswerPrinter printer(stdout_is_terminal(), stdout_is_terminal() && !o.hide_thinking);
  std::string reasoning, answer;
  std::vector<AnswerEvent> events;
  const auto take = [&] {
    bool more = true;
    for (const AnswerEvent& e : std::exchange(events, {})) {
      const bool thought = e.kind == AnswerEvent::Kind::kReasoning;
      (thought ? reasoning : answer) += e.text;
      if (stream && !o.raw) more = more && printer.print(e.text, thought);
    }
    return more;
  };
  options.on_delta = [&](const Delta& d) {
    parser.push(d.text, events);
    return take() && (!stream || !o.raw || printer.print(d.text, false));
  };
  std::optional<Progress> progress;
  if (!o.quiet) progress.emplace("reading the prompt", prompt.size(), Progress::Unit::kItems);
  options.on_prompt = [&](int done, int total) {
    if (progress) progress->update(done);
    if (done == total) progress.reset();
    return true;
  };

  CALLA_ASSIGN(const auto sequence, model->runner().start());
  const InterruptFlag interrupt;
  options.cancel = &interrupt.flag();
  const Result<Generation> result = generate(*model, *sequence, prompt, options);
  progress.reset();
  if (result) {
    parser.finish(events);
    take();
  }
  if (stream) printer.finish();
  CALLA_TRY(printer.error());
  if (!result) return tl::unexpected<Error>(result.error());
  if (o.json) {
    const Json json = to_json(*model, *result, reasoning, answer, options.sampling.logprobs >= 0);
    CALLA_TRY(write_stdout(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"));
  } else if (o.quiet) {
    CALLA_TRY(write_stdout(result->text));
  }
  if (!o.quiet) fmt::print(stderr, "{}{}: {}\n", stream ? "\n" : "", model->name(), describe(*result));
  if (result->finish == FinishReason::kCancelled) return fail(Error::Code::kCancelled, "cancelled");
  return {};
}

// What only the command line can have wrong.
void check_usage(const Options& o) {
  const int sources = o.prompt.has_value() + !o.file.empty() + !o.request.empty();
  if (sources > 1) throw CLI::ValidationError("give the prompt once: as an argument, with --file, or with --request");
  if (sources == 0 && stdin_is_terminal()) {
    throw CLI::ValidationError("there is no prompt: calla run \"Once upon a time\", or calla chat to talk");
  }
  if (o.prompt && o.prompt->find_first_not_of(" \t\r\n") == std::string::npos)
    throw CLI::ValidationError("the prompt is empty");
  if (o.raw && (!o.system.empty() || !o.request.empty() || o.thinking)) {
    throw CLI::ValidationError("--raw takes text as it is: --system, --request and --thinking need the chat template");
  }
  if (!o.request.empty() && !o.system.empty())
    throw CLI::ValidationError("with --request, the system message belongs in the request");
  if (o.quiet && o.json) throw CLI::ValidationError("--quiet and --json exclude each other");
  if (o.logprobs && !o.json) throw CLI::ValidationError("--logprobs needs --json");
  validate(o.sampling);
}

constexpr const char* kExamples = R"(Examples:
  calla run "Tell me a story about a fox"
  calla run --model mlx-community/Qwen3.6-35B-A3B-4bit --no-thinking --file question.txt
  git diff | calla run --system "Review this change" --model ~/models/qwen
  calla run --request request.json --temperature 0 --quiet    # the text exactly as the model wrote it
  calla run --json --logprobs 5 --max-tokens 20 "2 + 2 ="
  calla run --raw "Once upon a time"                          # no chat template: the model goes on with this text

The request is what an OpenAI client sends: {"messages": [...], "tools": [...], "temperature": ..., "chat_template_kwargs":
{"enable_thinking": false}}; flags win over its fields. The answer goes to standard output, everything else to standard error.
The model's authors recommend, when thinking: temperature 1, top-p 0.95, top-k 20, presence penalty 1.5; for code: temperature 0.6
and no penalty; without thinking: temperature 0.7, top-p 0.8, top-k 20, presence penalty 1.5.)";

}  // namespace

void add_run(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  app.add_option("PROMPT", o->prompt, "What to ask; without it, --file or --request, standard input is read")
      ->type_name("");
  app.add_option("--file", o->file, "Read the prompt from a file; - is standard input")->type_name("FILE");
  app.add_option("--request", o->request, "Read messages, tools and sampling fields from a JSON file")
      ->type_name("FILE");
  app.add_option("--system", o->system, "A system message before the prompt")->type_name("TEXT");
  app.add_flag("--raw", o->raw,
               "Continue the text itself, without the chat template; markers such as <|im_end|> count");
  add_thinking_flags(app, o->thinking);
  app.add_flag("--hide-thinking", o->hide_thinking, "Print only the answer, as to a pipe or a file");
  app.add_flag("--json", o->json, "Print one JSON object at the end: text, finish_reason, usage, timings");
  app.add_option("--logprobs", o->logprobs, "With --json: log-probabilities of each token and of the N likeliest")
      ->type_name("N")
      ->check(CLI::Range(0, 100));
  app.add_flag("--quiet", o->quiet, "Print the text exactly as generated and nothing else, not even a final line end");
  add_sampling_options(app, o->sampling);
  add_model_options(app, o->model);
  app.footer(kExamples);
  app.callback([o, &run] {
    check_usage(*o);
    o->model.runner.load.report = !o->quiet;
    run = [o] { return run_prompt(*o); };
  });
}

}  // namespace calla
