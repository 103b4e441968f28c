#include "engine/chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "text/answer_parser.h"
#include "text/chat_request.h"

namespace calla {
namespace {

constexpr uint64_t kMaxSavedBytes = 64 << 20;

std::string text_of(const ChatMessage& m) {
  std::string text;
  for (const ChatPart& part : m.content) text += part.text;
  return text;
}

const char* role_name(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return "system";
    case ChatRole::kUser:
      return "user";
    case ChatRole::kAssistant:
      return "assistant";
    case ChatRole::kTool:
      return "tool";
  }
  return "";
}

}  // namespace

Result<ChatSession> ChatSession::start(Model& model) {
  CALLA_ASSIGN(auto sequence, model.runner().start());
  return ChatSession(model, std::move(sequence));
}

Result<Generation> ChatSession::say(std::string user, GenerateOptions options, const OnText& on_text) {
  conversation_.messages.push_back(text_message(ChatRole::kUser, std::move(user)));
  Result<Generation> out = answer(std::move(options), on_text);
  if (!out || out->tokens.empty()) conversation_.messages.pop_back();
  return out;
}

Result<Generation> ChatSession::regenerate(GenerateOptions options, const OnText& on_text) {
  if (!has_answer()) return invalid("there is no answer yet");
  ChatMessage old = std::move(conversation_.messages.back());
  conversation_.messages.pop_back();
  Result<Generation> out = answer(std::move(options), on_text);
  if (!out || out->tokens.empty()) conversation_.messages.push_back(std::move(old));
  return out;
}

bool ChatSession::has_answer() const {
  return !conversation_.messages.empty() && conversation_.messages.back().role == ChatRole::kAssistant;
}

Result<Generation> ChatSession::answer(GenerateOptions options, const OnText& on_text) {
  // Without reasoning there is nothing to drop, and a kept (empty) block is what the model's own state begins its
  // answer with.
  conversation_.preserve_thinking = conversation_.thinking == false;
  CALLA_ASSIGN(const std::vector<int32_t> prompt, model_->encode(conversation_));
  if (prompt.size() >= static_cast<size_t>(context())) {
    return invalid(
        fmt::format("the conversation has {} tokens and the context holds {}: /clear forgets it, "
                    "and --context N starts a larger one",
                    prompt.size(), context()));
  }
  options.marks = {model_->last_turn(prompt)};
  AnswerParser parser(model_->ends_in_reasoning(prompt));
  ChatMessage answer = text_message(ChatRole::kAssistant, "");
  answer.reasoning = "";
  std::vector<AnswerEvent> events;
  const auto pass_on = [&] {
    bool more = true;
    for (const AnswerEvent& e : std::exchange(events, {})) {
      const bool reasoning = e.kind == AnswerEvent::Kind::kReasoning;
      (reasoning ? *answer.reasoning : answer.content[0].text) += e.text;
      more = on_text(e.text, reasoning) && more;
    }
    return more;
  };
  options.on_delta = [&](const Delta& d) {
    parser.push(d.text, events);
    return pass_on();
  };
  CALLA_ASSIGN(Generation out, generate(*model_, *sequence_, prompt, options));
  parser.finish(events);
  pass_on();
  if (!out.tokens.empty()) conversation_.messages.push_back(std::move(answer));
  return out;
}

void ChatSession::clear() {
  std::erase_if(conversation_.messages, [](const ChatMessage& m) { return m.role != ChatRole::kSystem; });
}

void ChatSession::set_system(std::string text) {
  auto& messages = conversation_.messages;
  std::erase_if(messages, [](const ChatMessage& m) { return m.role == ChatRole::kSystem; });
  if (!text.empty()) messages.insert(messages.begin(), text_message(ChatRole::kSystem, std::move(text)));
}

std::string ChatSession::system() const {
  const auto& messages = conversation_.messages;
  return !messages.empty() && messages[0].role == ChatRole::kSystem ? text_of(messages[0]) : "";
}

int ChatSession::turns() const {
  return static_cast<int>(std::count_if(conversation_.messages.begin(), conversation_.messages.end(),
                                        [](const ChatMessage& m) { return m.role == ChatRole::kUser; }));
}

Result<void> ChatSession::save(const std::filesystem::path& path) const {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const ChatMessage& m : conversation_.messages) {
    nlohmann::ordered_json json = {{"role", role_name(m.role)}, {"content", text_of(m)}};
    if (m.reasoning && !m.reasoning->empty()) json["reasoning_content"] = *m.reasoning;
    messages.push_back(std::move(json));
  }
  const nlohmann::ordered_json all = {{"messages", std::move(messages)}};
  return write_file(path, all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

Result<void> ChatSession::load(const std::filesystem::path& path) {
  CALLA_ASSIGN(const std::string text, read_file(path, kMaxSavedBytes));
  Result<Conversation> loaded = parse_conversation(text);
  if (!loaded) return invalid(fmt::format("{}: {}", path.string(), loaded.error().message));
  const bool tools =
      !loaded->tools.empty() || std::any_of(loaded->messages.begin(), loaded->messages.end(),
                                            [](auto& m) { return m.role == ChatRole::kTool || !m.tool_calls.empty(); });
  if (tools)
    return invalid(fmt::format("{} uses tools, which a chat has none of: try calla run --request", path.string()));
  conversation_.messages = std::move(loaded->messages);
  return {};
}

}  // namespace calla
