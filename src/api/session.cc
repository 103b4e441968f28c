#include "api/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <nlohmann/json.hpp>

#include "api/anthropic.h"
#include "api/openai_chat.h"
#include "api/openai_completions.h"
#include "api/openai_responses.h"
#include "text/chat_json.h"
#include "text/json_read.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kKeptGrammars = 32;
constexpr size_t kMaxAnswers = 64;  // to one request

// A request that continues nothing and offers no tools: a title, a summary, a first question.
bool is_side(const Conversation& c) {
  return c.tools.empty() && std::none_of(c.messages.begin(), c.messages.end(), [](const ChatMessage& m) {
           return m.role == ChatRole::kAssistant || m.role == ChatRole::kTool;
         });
}

}  // namespace

// The answers to one request.
class Session final : public ApiCall, public std::enable_shared_from_this<Session> {
 public:
  struct Rules {
    ApiStyle style = ApiStyle::kOpenAi;
    bool stream = false;
    bool raw = false;       // no reasoning and no calls, only text
    bool one_call = false;  // the answer ends with its first call
    bool logprobs = false;
    bool ignore_eos = false;
    std::shared_ptr<const ToolTypes> tools;
  };

  Session(const Model& model, Service& service, AnswerMemory& memory, Rules rules, std::unique_ptr<AnswerWriter> writer,
          std::shared_ptr<ApiOutput> output)
      : model_(model),
        service_(service),
        memory_(memory),
        rules_(std::move(rules)),
        think_end_(model.tokenizer().control_id("</think>")),
        call_begin_(model.tokenizer().control_id("<tool_call>")),
        writer_(std::move(writer)),
        output_(std::move(output)) {}

  // Queues all requests or none. Call once.
  Result<void> submit(std::vector<ServiceRequest> requests);
  void cancel() override;

 private:
  struct Choice {
    Choice(bool reasoning, std::shared_ptr<const ToolTypes> tools)
        : parser(reasoning, std::move(tools)), in_reasoning(reasoning) {}
    std::vector<int32_t> prompt;
    AnswerParser parser;
    ApiAnswer answer;
    bool in_reasoning;
    size_t written = 0;   // of answer.logprobs
    bool enough = false;  // nothing more is wanted of it
    bool ended = false;
  };
  class Sink;

  void on_prompt(int total, int cached);
  void on_delta(size_t index, const Delta& delta);
  void on_done(size_t index, Result<Generation> result);

  void take(size_t index, const std::vector<AnswerEvent>& events);
  bool add(Choice& choice, const AnswerEvent& event);
  void keep_logprob(Choice& choice, const Sampled& token);
  std::span<const Sampled> fresh_logprobs(Choice& choice);
  void finish();
  void fail(const ApiError& error);
  void end_stream();
  void flush();
  void send(int status, std::string body);
  void drop(size_t index);

  const Model& model_;
  Service& service_;
  AnswerMemory& memory_;
  const Rules rules_;
  const std::optional<int32_t> think_end_, call_begin_;

  // Of the service's thread alone, once requests are submitted.
  std::unique_ptr<AnswerWriter> writer_;
  std::vector<Choice> choices_;
  bool begun_ = false, done_ = false;
  std::string out_;  // events of a stream, until flush()

  std::atomic<bool> gone_{false};

  std::mutex tickets_mutex_;
  std::vector<uint64_t> tickets_;  // 0: not known yet
  std::vector<bool> dropped_;

  // Before the output has accepted, what it is to get waits here.
  std::mutex output_mutex_;
  const std::shared_ptr<ApiOutput> output_;
  bool accepted_ = false, finished_ = false;
  std::string waiting_;
  std::optional<std::pair<int, std::string>> whole_;
};

class Session::Sink final : public AnswerSink {
 public:
  Sink(std::shared_ptr<Session> session, size_t index) : session_(std::move(session)), index_(index) {}
  bool wanted() const override { return !session_->gone_; }
  void on_prompt(int, int total, int cached) override { session_->on_prompt(total, cached); }
  void on_delta(const Delta& delta) override { session_->on_delta(index_, delta); }
  void flush() override { session_->flush(); }
  void on_done(Result<Generation> result) override { session_->on_done(index_, std::move(result)); }

 private:
  const std::shared_ptr<Session> session_;
  const size_t index_;
};

Result<void> Session::submit(std::vector<ServiceRequest> requests) {
  tickets_.resize(requests.size());
  dropped_.resize(requests.size());
  for (const ServiceRequest& r : requests) {
    choices_.emplace_back(!rules_.raw && r.in_reasoning, rules_.tools);
    choices_.back().prompt = r.prompt;
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const Result<uint64_t> ticket =
        service_.submit(std::move(requests[i]), std::make_shared<Sink>(shared_from_this(), i));
    if (!ticket) {
      cancel();
      return tl::unexpected(ticket.error());
    }
    const std::lock_guard lock(tickets_mutex_);
    tickets_[i] = *ticket;
    if (gone_ || dropped_[i]) service_.cancel(*ticket);
  }
  const std::lock_guard lock(output_mutex_);
  if (!whole_) output_->accept(rules_.stream);
  accepted_ = true;
  if (whole_) {
    output_->send(whole_->first, std::move(whole_->second));
    return {};
  }
  if (!waiting_.empty() && !output_->write(std::exchange(waiting_, {}))) cancel();
  if (finished_) output_->finish();
  return {};
}

void Session::cancel() {
  gone_ = true;
  const std::lock_guard lock(tickets_mutex_);
  for (const uint64_t ticket : tickets_) {
    if (ticket != 0) service_.cancel(ticket);
  }
}

void Session::drop(size_t index) {
  const std::lock_guard lock(tickets_mutex_);
  dropped_[index] = true;
  if (tickets_[index] != 0) service_.cancel(tickets_[index]);
}

void Session::on_prompt(int total, int cached) {
  if (std::exchange(begun_, true) || !rules_.stream) return;
  writer_->begin(total, cached, out_);
  flush();  // the prompt may have to wait for a pass
}

void Session::on_delta(size_t index, const Delta& delta) {
  Choice& choice = choices_[index];
  if (gone_ || done_ || choice.enough) return;
  if (delta.token != nullptr) keep_logprob(choice, *delta.token);
  std::vector<AnswerEvent> events;
  if (rules_.raw) {
    if (!delta.text.empty()) events.push_back({AnswerEvent::Kind::kText, std::string(delta.text), 0});
  } else {
    choice.parser.push(delta.text, events);
  }
  take(index, events);
}

void Session::take(size_t index, const std::vector<AnswerEvent>& events) {
  Choice& choice = choices_[index];
  for (const AnswerEvent& event : events) {
    if (choice.enough) return;
    const bool fresh = add(choice, event);
    if (rules_.stream) {
      writer_->event(static_cast<int>(index), event, choice.answer, fresh, fresh_logprobs(choice), out_);
    }
    if (rules_.one_call && event.kind == AnswerEvent::Kind::kCallEnd) {
      choice.enough = true;
      drop(index);
    }
  }
}

// Whether the event began a new part.
bool Session::add(Choice& choice, const AnswerEvent& event) {
  std::vector<AnswerPart>& parts = choice.answer.parts;
  AnswerPart::Kind kind = AnswerPart::Kind::kCall;
  if (event.kind == AnswerEvent::Kind::kReasoning) kind = AnswerPart::Kind::kReasoning;
  if (event.kind == AnswerEvent::Kind::kText) kind = AnswerPart::Kind::kText;
  const bool fresh = event.kind == AnswerEvent::Kind::kCallBegin || parts.empty() || parts.back().kind != kind;
  if (fresh) parts.push_back({kind, {}, {}, new_id("")});
  (event.kind == AnswerEvent::Kind::kCallBegin ? parts.back().name : parts.back().text) += event.text;
  return fresh;
}

void Session::keep_logprob(Choice& choice, const Sampled& token) {
  const bool ends_reasoning = choice.in_reasoning && (token.id == think_end_ || token.id == call_begin_);
  const bool stops = model_.is_stop(token.id) && !rules_.ignore_eos;
  if (rules_.logprobs && !choice.in_reasoning && !stops) choice.answer.logprobs.push_back(token);
  if (ends_reasoning) choice.in_reasoning = false;
}

std::span<const Sampled> Session::fresh_logprobs(Choice& choice) {
  const std::span<const Sampled> all = choice.answer.logprobs;
  return all.subspan(std::exchange(choice.written, all.size()));
}

void Session::on_done(size_t index, Result<Generation> result) {
  Choice& choice = choices_[index];
  if (done_) return;
  if (gone_) {
    done_ = true;
    return;
  }
  if (!result) return fail(api_error(result.error()));
  if (result->finish == FinishReason::kCancelled && !choice.enough) {
    return fail({503, "the server is shutting down", "", "overloaded"});
  }
  if (!choice.enough && !rules_.raw) {
    std::vector<AnswerEvent> events;
    choice.parser.finish(events);
    take(index, events);
  }
  if (!rules_.raw) memory_.remember(model_, choice.prompt, *result, rules_.tools);
  choice.answer.answer_tokens = static_cast<int>(result->tokens.size());
  choice.answer.result = *std::move(result);
  choice.answer.result.tokens = {};
  choice.answer.result.text = {};
  if (choice.enough) choice.answer.result.finish = FinishReason::kStopToken;
  choice.ended = true;
  if (rules_.stream) writer_->end(static_cast<int>(index), choice.answer, fresh_logprobs(choice), out_);
  const bool all = std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.ended; });
  if (all) {
    finish();
  } else {
    flush();
  }
}

void Session::finish() {
  done_ = true;
  std::vector<ApiAnswer> answers;
  for (Choice& c : choices_) answers.push_back(std::move(c.answer));
  output_->complete(answers);
  if (!rules_.stream) return send(200, writer_->body(answers));
  writer_->finish(answers, out_);
  end_stream();
}

void Session::end_stream() {
  flush();
  const std::lock_guard lock(output_mutex_);
  finished_ = true;
  if (accepted_) output_->finish();
}

// The whole request fails with one of its answers.
void Session::fail(const ApiError& error) {
  done_ = true;
  if (rules_.stream) {
    writer_->fail(error, out_);
    end_stream();
  } else {
    send(error.status, error_body(rules_.style, error));
  }
  for (size_t i = 0; i < choices_.size(); ++i) drop(i);
}

void Session::flush() {
  if (out_.empty()) return;
  const std::lock_guard lock(output_mutex_);
  if (!accepted_) {
    waiting_ += out_;
  } else if (!gone_ && !output_->write(out_)) {
    cancel();
  }
  out_.clear();
}

void Session::send(int status, std::string body) {
  const std::lock_guard lock(output_mutex_);
  if (accepted_) {
    output_->send(status, std::move(body));
  } else {
    whole_ = {status, std::move(body)};
  }
}

Result<std::unique_ptr<Api>> Api::create(Model& model, Service& service, ApiOptions options) {
  CALLA_ASSIGN(GrammarVocabulary vocabulary, GrammarVocabulary::build(model.tokenizer(), model.stop_ids()));
  return std::unique_ptr<Api>(new Api(model, service, std::move(options), std::move(vocabulary)));
}

Api::Api(Model& model, Service& service, ApiOptions options, GrammarVocabulary vocabulary)
    : model_(model),
      service_(service),
      options_(std::move(options)),
      vocabulary_(std::make_shared<const GrammarVocabulary>(std::move(vocabulary))) {
  if (options_.name.empty()) options_.name = model.name();
}

ApiResult<ApiRequest> Api::parse(ApiKind kind, std::string_view body) const {
  switch (kind) {
    case ApiKind::kChat:
      return parse_chat(body, options_.defaults);
    case ApiKind::kCompletions:
      return parse_completions(body, options_.defaults, model_.tokenizer());
    case ApiKind::kResponses:
      return parse_responses(body, options_.defaults);
    case ApiKind::kMessages:
      return parse_messages(body, options_.defaults);
  }
  return tl::unexpected(ApiError{500, "no such API", "", ""});
}

std::unique_ptr<AnswerWriter> Api::writer(ApiKind kind, ApiRequest& request) const {
  WriterContext context;
  context.model = request.model.empty() ? options_.name : request.model;
  context.tokenizer = &model_.tokenizer();
  context.n = request.n;
  context.include_usage = request.include_usage;
  context.logprobs = request.options.sampling.logprobs >= 0;
  context.hide_thinking = request.hide_thinking;
  context.echo_prompts = std::move(request.echo_prompts);
  context.echo = request.echo;
  switch (kind) {
    case ApiKind::kChat:
      return chat_writer(std::move(context));
    case ApiKind::kCompletions:
      return completions_writer(std::move(context));
    case ApiKind::kResponses:
      return responses_writer(std::move(context));
    case ApiKind::kMessages:
      return messages_writer(std::move(context));
  }
  return nullptr;
}

Result<std::vector<ChatPrompt>> Api::prompts(ApiRequest& request) {
  std::vector<ChatPrompt> out;
  for (std::vector<int32_t>& ids : request.prompts) out.push_back({std::move(ids), {}, false});
  if (out.empty()) {
    CALLA_ASSIGN(ChatPrompt prompt, encode_chat(model_, request.conversation, memory_));
    out.push_back(std::move(prompt));
  }
  return out;
}

Result<std::shared_ptr<const Grammar>> Api::grammar(const ApiRequest& request) {
  const bool must_call = request.tool_choice == ToolChoice::kRequired;
  if (!must_call && request.format == AnswerFormat::kText) return nullptr;
  std::string key = fmt::format("{} {} {}\n", must_call, request.parallel_tool_calls, request.tool);
  if (request.format != AnswerFormat::kText) key += request.schema != nullptr ? python_json(*request.schema) : "object";
  for (const std::string& tool : request.conversation.tools) key.append("\n").append(tool);
  for (const std::string& name : request.strict_tools) key.append("\n").append(name);
  {
    const std::lock_guard lock(grammars_mutex_);
    const auto known =
        std::find_if(grammars_.begin(), grammars_.end(), [&](auto& entry) { return entry.first == key; });
    if (known != grammars_.end()) {
      grammars_.splice(grammars_.begin(), grammars_, known);
      return known->second;
    }
  }
  CALLA_ASSIGN(auto made, compile(request));
  const std::lock_guard lock(grammars_mutex_);
  grammars_.emplace_front(std::move(key), made);
  if (grammars_.size() > kKeptGrammars) grammars_.pop_back();
  return made;
}

Result<std::shared_ptr<const Grammar>> Api::compile(const ApiRequest& request) const {
  static const Json kAnyObject = {{"type", "object"}};
  const Json* answer = request.schema != nullptr ? request.schema.get() : &kAnyObject;
  if (request.format == AnswerFormat::kText) answer = nullptr;
  if (request.conversation.tools.empty()) return Grammar::json_schema(vocabulary_, *answer);
  std::deque<Json> tools;
  std::vector<GrammarTool> allowed;
  for (const std::string& line : request.conversation.tools) {
    CALLA_ASSIGN(Json parsed, parse_json(line));
    const Json& tool = tools.emplace_back(std::move(parsed));
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    const std::string_view name = json_text(json_member(function, "name"));
    if (!request.tool.empty() && name != request.tool) continue;
    const Json& parameters = json_member(function, "parameters");
    allowed.push_back(
        {std::string(name), parameters.is_null() ? nullptr : &parameters, request.strict_tools.contains(name)});
  }
  return Grammar::tool_calls(vocabulary_, allowed, request.parallel_tool_calls, answer);
}

ApiResult<std::vector<ServiceRequest>> Api::requests(ApiRequest& request) {
  auto all = prompts(request);
  if (!all) return tl::unexpected(api_error(all.error()));
  const size_t context = static_cast<size_t>(model_.runner().context());
  for (const ChatPrompt& prompt : *all) {
    if (prompt.ids.size() <= context) continue;
    // Agents look for these words to know that they must shorten the conversation.
    return tl::unexpected(
        ApiError{400,
                 fmt::format("prompt is too long: {} tokens, and the maximum context length is {} tokens",
                             prompt.ids.size(), context),
                 "", "context_length_exceeded"});
  }
  if (all->size() * request.n > kMaxAnswers) {
    return tl::unexpected(ApiError{400,
                                   fmt::format("n is {} for {} prompts, expected at most {} answers together",
                                               request.n, all->size(), kMaxAnswers),
                                   "n", ""});
  }
  auto made = grammar(request);
  if (!made) {
    ApiError error = api_error(made.error());
    error.param = request.format == AnswerFormat::kText ? "tools" : request.format_field;
    return tl::unexpected(std::move(error));
  }
  std::vector<ServiceRequest> out;
  for (ChatPrompt& prompt : *all) {
    for (int k = 0; k < request.n; ++k) {
      ServiceRequest& one = out.emplace_back();
      one.prompt = prompt.ids;
      one.options = request.options;
      // The same seed would give the same answer.
      if (one.options.sampling.seed) *one.options.sampling.seed += static_cast<uint64_t>(k);
      one.boundaries = prompt.boundaries;
      one.grammar = *made;
      one.in_reasoning = prompt.in_reasoning;
      one.thinking_budget = request.thinking_budget;
      one.side = request.prompts.empty() && is_side(request.conversation);
    }
  }
  return out;
}

std::shared_ptr<ApiCall> Api::answer(ApiKind kind, std::string_view body, std::shared_ptr<ApiOutput> output) {
  Session::Rules rules;
  rules.style = kind == ApiKind::kMessages ? ApiStyle::kAnthropic : ApiStyle::kOpenAi;
  const auto refuse = [&](const ApiError& error) {
    output->send(error.status, error_body(rules.style, error));
    return nullptr;
  };
  ApiResult<ApiRequest> request = parse(kind, body);
  if (!request) return refuse(request.error());
  ApiResult<std::vector<ServiceRequest>> queued = requests(*request);
  if (!queued) return refuse(queued.error());
  rules.stream = request->stream;
  rules.raw = kind == ApiKind::kCompletions;
  rules.one_call = !request->parallel_tool_calls;
  rules.logprobs = request->options.sampling.logprobs >= 0;
  rules.ignore_eos = request->options.ignore_eos;
  rules.tools = std::make_shared<const ToolTypes>(request->conversation.tools);
  const auto session =
      std::make_shared<Session>(model_, service_, memory_, std::move(rules), writer(kind, *request), output);
  if (const Result<void> submitted = session->submit(*std::move(queued)); !submitted) {
    return refuse(api_error(submitted.error()));
  }
  return session;
}

ApiResult<std::string> Api::count_tokens(std::string_view body) {
  ApiResult<ApiRequest> request = parse(ApiKind::kMessages, body);
  if (!request) return tl::unexpected(request.error());
  const auto all = prompts(*request);
  if (!all) return tl::unexpected(api_error(all.error()));
  return python_json({{"input_tokens", all->front().ids.size()}});
}

}  // namespace calla
