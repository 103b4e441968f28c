#include "server/page_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "text/chat_json.h"

namespace calla {
namespace {

constexpr int kDefaultLimit = 50;
constexpr int kMaxLimit = 200;
constexpr size_t kMaxNameBytes = 60;

HttpResponse json(int status, std::string body) {
  return {status, "application/json", {{"Cache-Control", "no-store"}}, std::move(body)};
}

HttpResponse error_response(const Error& error) {
  const int status = error.code == Error::Code::kNotFound ? 404 : error.code == Error::Code::kInvalid ? 400 : 503;
  return json(status, python_json({{"error", {{"message", error.message}}}}));
}

// The value of a name in a query; nullopt: it is not there.
Result<std::optional<std::string>> parameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    std::string pair(query.substr(0, query.find('&')));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    std::replace(pair.begin(), pair.end(), '+', ' ');
    const size_t equals = std::min(pair.find('='), pair.size());
    if (std::string_view(pair).substr(0, equals) != name) continue;
    auto value = percent_decoded(std::string_view(pair).substr(std::min(equals + 1, pair.size())));
    if (!value) return invalid(fmt::format("{} is not UTF-8 or holds control characters", name));
    return value;
  }
  return std::nullopt;
}

Result<int64_t> number(std::string_view query, std::string_view name, int64_t otherwise, int64_t most) {
  CALLA_ASSIGN(const std::optional<std::string> text, parameter(query, name));
  if (!text) return otherwise;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 1 || value > most) {
    return invalid(fmt::format("{} must be a number from 1 to {}", name, most));
  }
  return value;
}

Result<HttpResponse> list(ConversationStore& store, const Call& call) {
  const std::string& query = call.request.query;
  CALLA_ASSIGN(const std::optional<std::string> words, parameter(query, "q"));
  CALLA_ASSIGN(const int64_t before, number(query, "before", INT64_MAX, INT64_MAX));
  CALLA_ASSIGN(const int64_t limit, number(query, "limit", kDefaultLimit, kMaxLimit));
  CALLA_ASSIGN(auto found, store.list(words.value_or(""), static_cast<int>(limit) + 1, before));
  const bool more = found.size() > static_cast<size_t>(limit);
  if (more) found.pop_back();
  std::string body = "{\"conversations\": [";
  for (const ConversationSummary& summary : found) {
    if (body.back() != '[') body += ", ";
    body += to_json(summary);
  }
  return json(200, body + fmt::format("], \"more\": {}}}", more));
}

Result<HttpResponse> get(ConversationStore& store, const Call& call) {
  CALLA_ASSIGN(const StoredConversation conversation, store.get(call.params[0]));
  return json(200, to_json(conversation));
}

Result<HttpResponse> put(ConversationStore& store, const Call& call) {
  CALLA_ASSIGN(const ConversationChange change, read_change(call.request.body));
  CALLA_ASSIGN(const ConversationSummary summary, store.put(call.params[0], change));
  return json(200, to_json(summary));
}

Result<HttpResponse> rename(ConversationStore& store, const Call& call) {
  CALLA_ASSIGN(const ConversationChange change, read_change(call.request.body));
  if (!change.title) return invalid("title is missing");
  CALLA_ASSIGN(const ConversationSummary summary, store.rename(call.params[0], *change.title));
  return json(200, to_json(summary));
}

Result<HttpResponse> remove(ConversationStore& store, const Call& call) {
  CALLA_TRY(store.remove(call.params[0]));
  return HttpResponse{204, "", {}, ""};
}

// The title as the name of a file: letters and digits, what is between them as one dash.
std::string file_name(std::string_view title) {
  std::string name;
  for (const char c : title.substr(0, kMaxNameBytes)) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (plain) name += c;
    if (!plain && !name.empty() && name.back() != '-') name += '-';
  }
  if (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "conversation" : name;
}

Result<HttpResponse> export_file(ConversationStore& store, const Call& call) {
  CALLA_ASSIGN(const std::optional<std::string> format, parameter(call.request.query, "format"));
  const bool markdown = format == "markdown";
  if (!markdown && format != "json") return invalid("format must be markdown or json");
  CALLA_ASSIGN(const StoredConversation conversation, store.get(call.params[0]));
  HttpResponse response = json(200, markdown ? to_markdown(conversation) : to_json(conversation));
  if (markdown) response.content_type = "text/markdown; charset=utf-8";
  response.headers.push_back(
      {"Content-Disposition",
       fmt::format("attachment; filename=\"{}.{}\"", file_name(conversation.summary.title), markdown ? "md" : "json")});
  return response;
}

}  // namespace

Result<ConversationStore*> PageApi::store() {
  CALLA_TRY(file_);
  const std::lock_guard lock(mutex_);
  if (!store_) {
    CALLA_ASSIGN(store_, ConversationStore::open(*file_));
  }
  return &*store_;
}

void PageApi::add(Router& router, const char* method, const char* pattern, Answer answer) {
  router.add(method, pattern, [this, answer = std::move(answer)](const Call& call) {
    const auto response = store().and_then([&](ConversationStore* s) { return answer(*s, call); });
    call.reply->send(response ? *response : error_response(response.error()));
  });
}

void PageApi::add_to(Router& router) {
  add(router, "GET", "/api/conversations", list);
  add(router, "GET", "/api/conversations/{id}", get);
  add(router, "PUT", "/api/conversations/{id}", put);
  add(router, "PATCH", "/api/conversations/{id}", rename);
  add(router, "DELETE", "/api/conversations/{id}", remove);
  add(router, "GET", "/api/conversations/{id}/export", export_file);
}

}  // namespace calla
