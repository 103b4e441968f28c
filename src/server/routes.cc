#include "server/routes.h"

#include <fmt/format.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "text/chat_json.h"
#include "text/chat_request.h"
#include "text/utf8.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

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
  if (!request.is_object()) return invalid("the body must be a JSON object");
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

Result<Json> tokenize(const Model& model, int context, const Json& request) {
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
  return Json{{"tokens", std::move(tokens)}, {"count", ids.size()}, {"max_model_len", context}};
}

Result<Json> detokenize(const Model& model, const Json& request) {
  if (!request.is_object() || !request.contains("tokens") || !request["tokens"].is_array()) {
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

// JSON in, JSON out.
Router::Handler json_handler(const Router& router, std::function<Result<Json>(const Json& request)> work) {
  return [&router, work = std::move(work)](const Call& call) {
    const auto answer = [&]() -> Result<Json> {
      CALLA_ASSIGN(const Json request, parse_json(call.request.body));
      return work(request);
    }();
    call.reply->send(answer ? json_response(200, answer->dump())
                            : router.refusal(400, answer.error().message, call.request.path));
  };
}

}  // namespace

HttpResponse json_response(int status, std::string body) {
  return {status, "application/json", {}, std::move(body)};
}

HttpResponse error_response(int status, std::string message, std::string_view path) {
  if (path.starts_with("/v1/messages")) {
    return json_response(status,
                         Json{{"type", "error"}, {"error", {{"type", "api_error"}, {"message", message}}}}.dump());
  }
  return json_response(status, Json{{"error", {{"message", message}, {"type", "api_error"}}}}.dump());
}

void add_plain_routes(Router& router, const Serving& s) {
  router.add(
      "GET", "/health",
      [&s](const Call& call) {
        const ServiceStats stats = s.service.stats();
        call.reply->send(json_response(
            200, Json{{"status", "ok"}, {"model", s.model_id}, {"running", stats.running}, {"queued", stats.queued}}
                     .dump()));
      },
      {.open = true, .quiet = true});
  router.add("GET", "/metrics",
             [&s](const Call& call) {
               call.reply->send({200, "text/plain; version=0.0.4", {}, metrics_text(s)});
             },
             {.quiet = true});
  router.add("GET", "/v1/models",
             [&s](const Call& call) {
               call.reply->send(json_response(200, Json{{"object", "list"},
                                                        {"data", Json::array({model_json(s)})},
                                                        {"has_more", false},
                                                        {"first_id", s.model_id},
                                                        {"last_id", s.model_id}}
                                                       .dump()));
             },
             {.quiet = true});
  router.add("GET", "/v1/models/{model}", [&s, &router](const Call& call) {
    call.reply->send(
        call.params[0] == s.model_id
            ? json_response(200, model_json(s).dump())
            : router.refusal(404, fmt::format("there is no model \"{}\", only \"{}\"", call.params[0], s.model_id),
                             call.request.path));
  });
  router.add("POST", "/tokenize", json_handler(router, [&s](const Json& request) {
               return tokenize(s.model, s.model.runner().context(), request);
             }));
  router.add("POST", "/detokenize",
             json_handler(router, [&s](const Json& request) { return detokenize(s.model, request); }));
}

}  // namespace calla
