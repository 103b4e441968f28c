#include "store/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

const Json* find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// The string under a key; nullptr: absent or null.
Result<const std::string*> string_field(const Json& object, const char* key, std::string_view where) {
  const Json* value = find(object, key);
  if (value == nullptr) return nullptr;
  if (!value->is_string()) {
    return invalid(fmt::format("{}{} must be a string, not {}", where, key, value->type_name()));
  }
  return &value->get_ref<const std::string&>();
}

// The text of a message's content: a string, or the "text" of its parts.
std::string text_of(const Json& message) {
  const Json* content = find(message, "content");
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  if (!content->is_array()) return text;
  for (const Json& part : *content) {
    const Json* piece = part.is_object() ? find(part, "text") : nullptr;
    if (piece == nullptr || !piece->is_string()) continue;
    if (!text.empty()) text += '\n';
    text += piece->get_ref<const std::string&>();
  }
  return text;
}

Result<StoredMessage> read_message(const Json& json, size_t index) {
  const std::string where = fmt::format("messages[{}].", index);
  if (!json.is_object()) return invalid(fmt::format("messages[{}] must be an object", index));
  StoredMessage message;
  CALLA_ASSIGN(const std::string* const id, string_field(json, "id", where));
  CALLA_TRY(check_id(id == nullptr ? "" : *id, where + "id"));
  message.id = *id;
  CALLA_ASSIGN(const std::string* const parent, string_field(json, "parent", where));
  if (parent != nullptr) {
    CALLA_TRY(check_id(*parent, where + "parent"));
    message.parent = *parent;
  }
  CALLA_ASSIGN(const std::string* const role, string_field(json, "role", where));
  if (role == nullptr || (*role != "system" && *role != "user" && *role != "assistant" && *role != "tool")) {
    return invalid(where + "role must be system, user, assistant or tool");
  }
  message.role = *role;
  message.json = python_json(json);
  message.text = text_of(json);
  return message;
}

// A fence of backticks longer than any run of them inside.
std::string fenced(std::string_view code, std::string_view language) {
  size_t longest = 2;
  size_t run = 0;
  for (const char c : code) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  return fmt::format("{}{}\n{}\n{}\n\n", fence, language, code, fence);
}

void append_calls(std::string& out, const Json& message) {
  const Json* calls = find(message, "tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  for (const Json& call : *calls) {
    const Json* function = call.is_object() ? find(call, "function") : nullptr;
    if (function == nullptr || !function->is_object()) continue;
    const Json* name = find(*function, "name");
    const Json* arguments = find(*function, "arguments");
    out += fmt::format("Calls `{}`:\n\n", name != nullptr && name->is_string() ? name->get<std::string>() : "?");
    if (arguments == nullptr) continue;
    out += fenced(arguments->is_string() ? arguments->get<std::string>() : python_json(*arguments), "json");
  }
}

void append_turn(std::string& out, const StoredMessage& message) {
  const char* const heading = message.role == "user"     ? "You"
                              : message.role == "system" ? "System"
                              : message.role == "tool"   ? "Tool result"
                                                         : "Answer";
  out += fmt::format("## {}\n\n", heading);
  if (message.role == "tool") {
    out += fenced(message.text, "");
    return;
  }
  const auto json = parse_json(message.json);
  const Json* reasoning = json && json->is_object() ? find(*json, "reasoning_content") : nullptr;
  if (reasoning != nullptr && reasoning->is_string() && !reasoning->get_ref<const std::string&>().empty()) {
    out += fmt::format("<details><summary>Thinking</summary>\n\n{}</details>\n\n",
                       fenced(reasoning->get_ref<const std::string&>(), ""));
  }
  if (!message.text.empty()) out += message.text + "\n\n";
  if (json && json->is_object()) append_calls(out, *json);
}

Json summary_json(const ConversationSummary& summary) {
  Json json = {
      {"id", summary.id}, {"title", summary.title}, {"created", summary.created}, {"updated", summary.updated}};
  if (!summary.snippet.empty()) json["snippet"] = summary.snippet;
  return json;
}

}  // namespace

Result<void> check_id(std::string_view id, std::string_view what) {
  const bool good = !id.empty() && id.size() <= kMaxIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
  if (good) return {};
  return invalid(fmt::format("{} must be 1 to {} letters, digits, \"-\" or \"_\"", what, kMaxIdBytes));
}

Result<std::string> clean_title(std::string_view title) {
  std::string clean;
  for (const char c : title) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > 0x20 && byte != 0x7f) {
      clean += c;
    } else if (!clean.empty() && clean.back() != ' ') {
      clean += ' ';
    }
  }
  if (!clean.empty() && clean.back() == ' ') clean.pop_back();
  if (clean.empty()) return invalid("title must not be empty");
  if (clean.size() > kMaxTitleBytes) {
    return invalid(fmt::format("title has {} bytes, more than the limit of {}", clean.size(), kMaxTitleBytes));
  }
  return clean;
}

Result<ConversationChange> read_change(std::string_view text) {
  CALLA_ASSIGN(const Json json, parse_json(text));
  if (!json.is_object()) return invalid("a conversation must be a JSON object");
  ConversationChange change;
  CALLA_ASSIGN(const std::string* const title, string_field(json, "title", ""));
  if (title != nullptr) {
    CALLA_ASSIGN(change.title, clean_title(*title));
  }
  CALLA_ASSIGN(const std::string* const leaf, string_field(json, "leaf", ""));
  if (leaf != nullptr) {
    CALLA_TRY(check_id(*leaf, "leaf"));
    change.leaf = *leaf;
  }
  if (const Json* settings = find(json, "settings")) {
    if (!settings->is_object()) return invalid("settings must be an object");
    change.settings = python_json(*settings);
  }
  if (const Json* messages = find(json, "messages")) {
    if (!messages->is_array()) return invalid("messages must be an array");
    if (messages->size() > kMaxMessages) {
      return invalid(fmt::format("messages has {} items, more than the limit of {}", messages->size(), kMaxMessages));
    }
    for (size_t i = 0; i < messages->size(); ++i) {
      CALLA_ASSIGN(StoredMessage message, read_message((*messages)[i], i));
      change.messages.push_back(std::move(message));
    }
  }
  return change;
}

std::string to_json(const ConversationSummary& summary) {
  return python_json(summary_json(summary));
}

std::string to_json(const StoredConversation& conversation) {
  std::string out = python_json(summary_json(conversation.summary));
  out.pop_back();  // the closing brace
  out += fmt::format(", \"leaf\": {}, \"settings\": {}, \"messages\": [",
                     conversation.leaf.empty() ? "null" : '"' + conversation.leaf + '"',
                     conversation.settings.empty() ? "{}" : conversation.settings);
  const char* separator = "";
  for (const StoredMessage& message : conversation.messages) {
    out += separator;
    out += message.json;
    separator = ", ";
  }
  return out + "]}";
}

std::string to_markdown(const StoredConversation& conversation) {
  std::unordered_map<std::string_view, const StoredMessage*> by_id;
  for (const StoredMessage& message : conversation.messages) by_id.emplace(message.id, &message);
  std::vector<const StoredMessage*> branch;
  for (std::string_view id = conversation.leaf; !id.empty() && branch.size() < by_id.size();) {
    const auto it = by_id.find(id);
    if (it == by_id.end()) break;
    branch.push_back(it->second);
    id = it->second->parent;
  }
  std::string out = fmt::format("# {}\n\n", conversation.summary.title);
  for (auto it = branch.rbegin(); it != branch.rend(); ++it) append_turn(out, **it);
  return out;
}

}  // namespace calla
