#include "server/routes.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "base/memory.h"
#include "text/chat_request.h"
#include "text/utf8.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

// Clients and proxies give up after one to five minutes of silence.
constexpr milliseconds kSilence{5000};
constexpr milliseconds kHold{60'000};

HttpResponse json_response(int status, std::string body) {
  HttpResponse response{status, "application/json", {}, std::move(body)};
  if (status == 503) response.headers.push_back({"Retry-After", "1"});
  return response;
}

class HttpOutput final : public ApiOutput {
 public:
  HttpOutput(std::shared_ptr<CallReply> reply, RequestMetrics& metrics) : reply_(std::move(reply)), metrics_(metrics) {}

  void accept(bool stream) override {
    if (stream) {
      // The second header is for nginx.
      reply_->begin({200, "text/event-stream", {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}, ""},
                    {": ping\n\n", kSilence});
    } else {
      reply_->hold({200, "application/json", {}, ""}, {" ", kSilence}, kHold);
    }
  }
  bool write(std::string_view events) override { return reply_->write(events); }
  void complete(std::span<const ApiAnswer> answers) override {
    const Generation& first = answers.front().result;
    const auto rate = [](const ApiAnswer& a) {
      const double seconds = a.result.times.decode_seconds;
      return a.answer_tokens > 1 && seconds > 0 ? (a.answer_tokens - 1) / seconds : 0;
    };
    int64_t tokens = 0;
    for (const ApiAnswer& a : answers) {
      tokens += a.answer_tokens;
      if (rate(a) > 0) metrics_.decode_rate(rate(a));
    }
    if (first.prompt_rate() > 0) metrics_.prompt_rate(first.prompt_rate());
    metrics_.first_token(first.times.first_seconds);
    reply_->complete();
    reply_->note("prompt", int64_t{first.prompt_tokens});
    reply_->note("cached", int64_t{first.reused_tokens});
    reply_->note("answer", tokens);
    reply_->note("finish", std::string(finish_reason_name(first.finish)));
    reply_->note("prompt_rate", first.prompt_rate());
    reply_->note("decode_rate", rate(answers.front()));
  }
  void finish() override { reply_->finish(); }
  void send(int status, std::string json) override { reply_->send(json_response(status, std::move(json))); }

 private:
  const std::shared_ptr<CallReply> reply_;
  RequestMetrics& metrics_;
};

std::string iso_time(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec);
}

// The fields of OpenAI's list and of Anthropic's, and the names under which servers and clients look for the context.
Json model_json(const Serving& s) {
  const int context = s.model.runner().context();
  return {{"id", s.model_id},
          {"object", "model"},
          {"created", s.started},
          {"owned_by", "calla"},
          {"type", "model"},
          {"display_name", s.model_id},
          {"created_at", iso_time(s.started)},
          {"context_length", context},
          {"max_model_len", context}};
}

// What Codex reads, which refuses the list where one of these is missing.
Json codex_model_json(const Serving& s) {
  Json levels = Json::array();
  for (const char* effort : {"low", "medium", "high"}) {
    levels.push_back({{"effort", effort}, {"description", fmt::format("Thinks with {} effort.", effort)}});
  }
  return {{"slug", s.model_id},
          {"display_name", s.model_id},
          {"description", "Runs on this computer."},
          {"default_reasoning_level", "high"},
          {"supported_reasoning_levels", std::move(levels)},
          {"shell_type", "shell_command"},
          {"visibility", "list"},
          {"supported_in_api", true},
          {"priority", 0},
          {"upgrade", nullptr},
          {"base_instructions", ""},
          {"supports_reasoning_summaries", false},
          {"support_verbosity", false},
          {"default_verbosity", nullptr},
          {"apply_patch_tool_type", nullptr},
          {"truncation_policy", {{"mode", "bytes"}, {"limit", 10000}}},
          {"supports_parallel_tool_calls", true},
          {"context_window", s.model.runner().context()},
          {"experimental_supported_tools", Json::array()},
          {"input_modalities", Json::array({"text"})}};
}

Json models_json(const Serving& s) {
  return {{"object", "list"},
          {"data", Json::array({model_json(s)})},
          {"models", Json::array({codex_model_json(s)})},
          {"has_more", false},
          {"first_id", s.model_id},
          {"last_id", s.model_id}};
}

std::string metrics_text(const Serving& s) {
  MetricsText out;
  const auto add = [&](std::string_view name, std::string_view type, std::string_view help, auto value) {
    out.family(name, type, help);
    out.sample(static_cast<double>(value));
  };
  const ServiceStats stats = s.service.stats();
  add("calla_requests_queued", "gauge", "Answers that wait for their turn.", stats.queued);
  add("calla_requests_running", "gauge", "Answers that are being computed.", stats.running);
  out.family("calla_answers_total", "counter", "Answers, by how they ended.");
  for (const auto& [end, count] : {std::pair("finished", stats.finished),
                                   {"cancelled", stats.cancelled},
                                   {"failed", stats.failed},
                                   {"refused", stats.refused}}) {
    out.sample(static_cast<double>(count), {{"end", end}});
  }
  add("calla_prompt_tokens_total", "counter", "Tokens of prompts, cached ones included.", stats.prompt_tokens);
  add("calla_cached_tokens_total", "counter", "Tokens of prompts that a snapshot held.", stats.cached_tokens);
  add("calla_answer_tokens_total", "counter", "Tokens of answers.", stats.answer_tokens);
  add("calla_snapshots", "gauge", "Snapshots in memory.", stats.snapshots);
  add("calla_snapshot_bytes", "gauge", "Memory of the snapshots' states.", stats.snapshot_bytes);
  const HttpStats http = s.http();
  add("calla_http_connections", "gauge", "Open connections.", http.connections);
  add("calla_http_answering", "gauge", "Requests without a complete answer.", http.answering);
  add("calla_http_cut_total", "counter", "Connections cut because the client read too slowly.", http.cut);
  add("process_resident_memory_bytes", "gauge", "Resident memory.", process_memory().total);
  add("process_start_time_seconds", "gauge", "When the server started, in seconds since 1970.", s.started);
  s.metrics.write(out);
  return out.text();
}

// The text of /tokenize as ids: `content`, `prompt` or `text` (a string), or `messages`, as the chat template renders
// them.
Result<std::vector<int32_t>> ids_of(const Model& model, const Json& request) {
  if (request.contains("messages")) {
    CALLA_ASSIGN(const Conversation conversation, read_conversation(request));
    return model.encode(conversation);
  }
  for (const char* field : {"content", "prompt", "text"}) {
    const auto it = request.find(field);
    if (it == request.end()) continue;
    if (!it->is_string()) return invalid(fmt::format("{} must be a string", field));
    const auto& text = it->get_ref<const std::string&>();
    const auto special = request.find("parse_special");
    if (special != request.end() && !special->is_boolean()) return invalid("parse_special must be true or false");
    if (special != request.end() && special->get<bool>()) return model.tokenizer().encode_official(text);
    std::vector<int32_t> ids;
    model.tokenizer().encode(text, ids);
    return ids;
  }
  return invalid("content (a string) or messages is missing");
}

Result<Json> tokenize(Model& model, const Json& request) {
  CALLA_ASSIGN(const std::vector<int32_t> ids, ids_of(model, request));
  const auto pieces = request.find("with_pieces");
  if (pieces != request.end() && !pieces->is_boolean()) return invalid("with_pieces must be true or false");
  Json tokens = Json::array();
  for (const int32_t id : ids) {
    if (pieces != request.end() && pieces->get<bool>()) {
      tokens.push_back({{"id", id}, {"piece", repair_utf8(model.tokenizer().bytes(id))}});
    } else {
      tokens.push_back(id);
    }
  }
  return Json{{"tokens", std::move(tokens)}, {"count", ids.size()}, {"max_model_len", model.runner().context()}};
}

Result<Json> detokenize(Model& model, const Json& request) {
  if (!request.contains("tokens") || !request["tokens"].is_array()) {
    return invalid("tokens (a list of ids) is missing");
  }
  std::string text;
  for (size_t i = 0; i < request["tokens"].size(); ++i) {
    const Json& id = request["tokens"][i];
    const bool known = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(model.tokenizer().size());
    if (!known) return invalid(fmt::format("tokens[{}] must be an id below {}", i, model.tokenizer().size()));
    text += model.tokenizer().bytes(id.get<int32_t>());
  }
  text = repair_utf8(text);
  return Json{{"content", text}, {"prompt", text}};
}

}  // namespace

HttpResponse error_response(int status, std::string message, std::string_view path) {
  return json_response(status, error_body(api_style(path), {status, std::move(message), "", ""}));
}

void add_routes(Router& router, const Serving& s) {
  for (const auto& [path, kind] : {std::pair("/v1/chat/completions", ApiKind::kChat),
                                   {"/v1/completions", ApiKind::kCompletions},
                                   {"/v1/responses", ApiKind::kResponses},
                                   {"/v1/messages", ApiKind::kMessages}}) {
    router.add("POST", path, [&s, kind = kind](const Call& call) {
      const std::shared_ptr<ApiCall> answer =
          s.api.answer(kind, call.request.body, std::make_shared<HttpOutput>(call.reply, s.metrics));
      if (answer == nullptr) return;
      call.reply->on_close([weak = std::weak_ptr(answer)] {
        if (const auto a = weak.lock()) a->cancel();
      });
    });
  }
  // JSON in, JSON out.
  using Work = std::function<ApiResult<std::string>(std::string_view body)>;
  const auto add_json = [&](const char* path, Work work) {
    router.add("POST", path, [path, work = std::move(work)](const Call& call) {
      const ApiResult<std::string> json = work(call.request.body);
      call.reply->send(json ? json_response(200, *json)
                            : json_response(json.error().status, error_body(api_style(path), json.error())));
    });
  };
  add_json("/v1/messages/count_tokens", [&s](std::string_view body) { return s.api.count_tokens(body); });
  const auto add_plain = [&](const char* path, Result<Json> (*work)(Model&, const Json&)) {
    add_json(path, [&s, work](std::string_view body) -> ApiResult<std::string> {
      const ApiResult<Json> request = parse_body(body);
      if (!request) return tl::unexpected(request.error());
      const Result<Json> answer = work(s.model, *request);
      if (!answer) return tl::unexpected(api_error(answer.error(), *request));
      return answer->dump();
    });
  };
  add_plain("/tokenize", tokenize);
  add_plain("/detokenize", detokenize);

  constexpr Router::Flags kQuiet{.quiet = true};
  router.add(
      "GET", "/v1/models", [&s](const Call& call) { call.reply->send(json_response(200, models_json(s).dump())); },
      kQuiet);
  router.add("GET", "/v1/models/{model}", [&s](const Call& call) {
    call.reply->send(call.params[0] == s.model_id
                         ? json_response(200, model_json(s).dump())
                         : error_response(404, "there is no such model, only " + s.model_id, call.request.path));
  });
  router.add(
      "GET", "/metrics",
      [&s](const Call& call) {
        call.reply->send({200, "text/plain; version=0.0.4", {}, metrics_text(s)});
      },
      kQuiet);
  router.add(
      "GET", "/health",
      [&s](const Call& call) {
        const ServiceStats stats = s.service.stats();
        call.reply->send(json_response(
            200, Json{{"status", "ok"}, {"model", s.model_id}, {"running", stats.running}, {"queued", stats.queued}}
                     .dump()));
      },
      {.open = true, .quiet = true});
}

}  // namespace calla
