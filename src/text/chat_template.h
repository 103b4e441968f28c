#pragma once

// The chat template: from a conversation to the text that the model was trained to continue.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/prompt.h"

namespace calla {

// One piece of a message's content. An image or video is a placeholder here; its pixels travel apart from the text.
struct ChatPart {
  enum class Kind : uint8_t { kText, kImage, kVideo };
  Kind kind = Kind::kText;
  std::string text;  // of kText
};

struct ChatArgument {
  std::string name;
  std::string value;     // a string's own letters, or the JSON text (python_json) of anything else
  bool is_json = false;  // which of the two
};

struct ChatToolCall {
  std::string name;
  std::vector<ChatArgument> arguments;
};

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant, kTool };

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  // What the model reads is the parts' concatenation: how a text is cut into parts does not matter.
  std::vector<ChatPart> content;
  // The rest is of an assistant. Unset reasoning is taken from a <think> block in the content, if there is one.
  std::optional<std::string> reasoning;
  std::vector<ChatToolCall> tool_calls;
};

// A message of one text.
inline ChatMessage text_message(ChatRole role, std::string text) {
  ChatMessage message;
  message.role = role;
  message.content.push_back({ChatPart::Kind::kText, std::move(text)});
  return message;
}

struct Conversation {
  std::vector<ChatMessage> messages;
  // Each tool's definition with its outer {"type": "function", …}, as one line (python_json).
  std::vector<std::string> tools;
  // End with the header of the answer that the model is to write.
  bool add_generation_prompt = true;
  // Whether that answer starts with reasoning. Unset: the template's default.
  std::optional<bool> thinking;
  // Keep the reasoning of finished turns (3.6 only). Then a prompt and its answer are the start of the next prompt,
  // byte for byte; without it, a new user message takes the reasoning out of the turn before.
  bool preserve_thinking = false;
  // Number the images and videos: "Picture 1: ".
  bool add_vision_id = false;
};

// How much is accepted.
enum class ChatRules : uint8_t {
  kOfficial,  // what the official template accepts, and its errors
  kLenient,   // that, rendered to the same bytes, and the harmless departures that real clients make
};

// A template of this model family, known by content. Rendering is ours; the result equals the official Jinja text byte
// for byte. Immutable and safe to use from several threads.
class ChatTemplate {
 public:
  enum class Version : uint8_t {
    kQwen36,
    kQwen35,       // no preserve_thinking; true, false and null among a call's arguments print as True, False and None
    kQwen35Small,  // as kQwen35, and without a word about thinking the answer does not think
  };

  explicit ChatTemplate(Version version) : version_(version) {}
  // From a checkpoint's folder: chat_template.jinja, else chat_template in tokenizer_config.json.
  static Result<ChatTemplate> load(const std::filesystem::path& folder);
  // By the text of the Jinja file. Line ends and the end of the file do not matter; any other difference is an unknown
  // template, which is refused: guessing would answer, but worse, and nobody would know why.
  static Result<ChatTemplate> identify(std::string_view jinja);
  // By name: "qwen3.6", "qwen3.5", "qwen3.5-small".
  static Result<ChatTemplate> named(std::string_view name);

  Version version() const { return version_; }
  std::string_view name() const;

  // The result's controls are the template's own markers. Content never holds one, whatever it spells.
  //
  // Official rules refuse a system message that is not the first, and a conversation without a user's query (a user
  // message that is not all <tool_response>…</tool_response>). Lenient rules render them:
  //   * system messages at the start are one system turn, their texts joined by a blank line; later ones are turns of
  //   their own,
  //     in place, so that what was said before keeps its tokens;
  //   * without a query, every assistant turn counts as part of the running one and keeps its reasoning.
  // Both refuse an empty conversation and images or videos in a system message.
  Result<Prompt> render(const Conversation& conversation, ChatRules rules = ChatRules::kLenient) const;

 private:
  Version version_;
};

}  // namespace calla
