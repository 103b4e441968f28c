#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "base/sha256.h"
#include "text/chat_json.h"

namespace calla {
namespace {

using Version = ChatTemplate::Version;

struct Known {
  Version version;
  std::string_view name;
  std::string_view sha256;  // of the official file, which has no line end at its end
};
constexpr Known kKnown[] = {
    {Version::kQwen36, "qwen3.6", "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259"},
    {Version::kQwen35, "qwen3.5", "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715"},
    {Version::kQwen35Small, "qwen3.5-small", "273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80"},
};

// The added tokens that the template writes. None is a prefix of another.
constexpr std::string_view kMarkers[] = {
    "<|im_start|>",    "<|im_end|>",       "<think>",          "</think>",      "<tool_call>",   "</tool_call>",
    "<tool_response>", "</tool_response>", "<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>",
};

// What precedes and follows the tools' definitions in the system turn. The markers in the example are control tokens
// too: official tokenization, and so training, sees them as such.
constexpr std::string_view kToolsBefore = "# Tools\n\nYou have access to the following functions:\n\n<tools>";
constexpr std::string_view kToolsAfter =
    R"(
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls
</IMPORTANT>)";

// Appends a text of the template itself, in which markers are control tokens.
void append_fixed(Prompt& out, std::string_view text) {
  const size_t base = out.text.size();
  out.text += text;
  for (size_t at = text.find('<'); at != text.npos; at = text.find('<', at + 1)) {
    for (const std::string_view marker : kMarkers) {
      if (text.substr(at).starts_with(marker)) out.controls.push_back({base + at, marker.size()});
    }
  }
}

// Appends a text from outside, in which nothing is a control token.
void append_plain(Prompt& out, std::string_view text) {
  out.text += text;
}

// Part of a rendered content, whose only controls are placeholders of images and videos. The string methods that the
// template applies to contents (strip, split) only shorten a text at its ends, never inside a placeholder: a range does
// for all of them.
struct Slice {
  const Prompt* whole = nullptr;
  size_t begin = 0;
  size_t end = 0;

  explicit Slice(const Prompt& p) : whole(&p), end(p.text.size()) {}
  std::string_view text() const { return std::string_view(whole->text).substr(begin, end - begin); }
  Slice first(size_t n) const { return cut(begin, begin + n); }
  Slice from(size_t n) const { return cut(begin + n, end); }
  Slice cut(size_t b, size_t e) const {
    Slice s = *this;
    s.begin = b, s.end = e;
    return s;
  }
};

void append_slice(Prompt& out, const Slice& s) {
  const ptrdiff_t shift = static_cast<ptrdiff_t>(out.text.size()) - static_cast<ptrdiff_t>(s.begin);
  out.text += s.text();
  for (const Span& c : s.whole->controls) {
    if (c.offset < s.begin || c.offset + c.length > s.end) continue;
    out.controls.push_back({static_cast<size_t>(static_cast<ptrdiff_t>(c.offset) + shift), c.length});
  }
}

// What Python's str.strip() removes: the characters of str.isspace(), in UTF-8.
constexpr std::string_view kSpaces[] = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80",
};

Slice stripped(Slice s) {
  const auto length_of_space = [](auto&& matches) -> size_t {
    const auto space = std::find_if(std::begin(kSpaces), std::end(kSpaces), matches);
    return space == std::end(kSpaces) ? 0 : space->size();
  };
  while (const size_t n = length_of_space([&](std::string_view x) { return s.text().starts_with(x); })) s.begin += n;
  while (const size_t n = length_of_space([&](std::string_view x) { return s.text().ends_with(x); })) s.end -= n;
  return s;
}

Slice without_leading_newlines(Slice s) {
  while (s.begin < s.end && s.text().front() == '\n') ++s.begin;
  return s;
}

// Content and reasoning of an assistant turn, the reasoning from the message's own field or from the content's think
// block.
struct Answer {
  Slice reasoning;
  Slice content;
};

Answer split_thinking(Slice content) {
  static const Prompt kEmpty;
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  const size_t first_close = content.text().find(kClose);
  if (first_close == std::string_view::npos) return {Slice(kEmpty), content};
  Slice reasoning = content.first(first_close);
  if (const size_t open = reasoning.text().rfind(kOpen); open != std::string_view::npos)
    reasoning = reasoning.from(open + kOpen.size());
  return {stripped(reasoning), without_leading_newlines(content.from(content.text().rfind(kClose) + kClose.size()))};
}

class Renderer {
 public:
  Renderer(Version version, const Conversation& c, ChatRules rules) : version_(version), c_(c), rules_(rules) {}

  Result<Prompt> render() {
    if (c_.messages.empty()) return invalid("messages is empty: there is nothing to answer");
    CALLA_TRY(render_contents());
    CALLA_ASSIGN(const size_t leading, leading_system_messages());
    system_turn(leading);
    CALLA_ASSIGN(const ptrdiff_t query, last_query());
    for (size_t i = leading; i < c_.messages.size(); ++i) {
      switch (c_.messages[i].role) {
        case ChatRole::kSystem:
          turn("<|im_start|>system\n", i);
          break;
        case ChatRole::kUser:
          turn("<|im_start|>user\n", i);
          break;
        case ChatRole::kAssistant:
          assistant_turn(i, static_cast<ptrdiff_t>(i) > query);
          break;
        case ChatRole::kTool:
          tool_result(i);
          break;
      }
    }
    if (c_.add_generation_prompt) {
      const bool thinks = c_.thinking.value_or(version_ != Version::kQwen35Small);
      append_fixed(out_, "<|im_start|>assistant\n");
      append_fixed(out_, thinks ? "<think>\n" : "<think>\n\n</think>\n\n");
    }
    return std::move(out_);
  }

 private:
  // Fills contents_, in order: pictures and videos are numbered through the conversation.
  Result<void> render_contents() {
    int images = 0;
    int videos = 0;
    contents_.reserve(c_.messages.size());
    for (size_t i = 0; i < c_.messages.size(); ++i) {
      Prompt& content = contents_.emplace_back();
      for (const ChatPart& part : c_.messages[i].content) {
        if (part.kind == ChatPart::Kind::kText) {
          append_plain(content, part.text);
          continue;
        }
        const bool image = part.kind == ChatPart::Kind::kImage;
        if (c_.messages[i].role == ChatRole::kSystem) {
          return invalid(
              fmt::format("messages[{}].content: a system message cannot contain {}", i, image ? "images" : "videos"));
        }
        const int number = image ? ++images : ++videos;
        if (c_.add_vision_id) append_plain(content, fmt::format("{} {}: ", image ? "Picture" : "Video", number));
        append_fixed(content, image ? "<|vision_start|><|image_pad|><|vision_end|>"
                                    : "<|vision_start|><|video_pad|><|vision_end|>");
      }
    }
    return {};
  }

  Slice content(size_t i) const { return stripped(Slice(contents_[i])); }

  // How many messages the system turn at the start takes up.
  Result<size_t> leading_system_messages() const {
    const auto is_system = [](const ChatMessage& m) { return m.role == ChatRole::kSystem; };
    const auto begin = c_.messages.begin();
    const auto end = c_.messages.end();
    if (rules_ == ChatRules::kLenient) return std::find_if_not(begin, end, is_system) - begin;
    if (const auto late = std::find_if(begin + 1, end, is_system); late != end) {
      return invalid(fmt::format("messages[{}]: a system message must be at the beginning", late - begin));
    }
    return is_system(*begin) ? 1 : 0;
  }

  void system_turn(size_t leading) {
    std::string text;
    for (size_t i = 0; i < leading; ++i) {
      const std::string_view more = content(i).text();
      if (!text.empty() && !more.empty()) text += "\n\n";
      text += more;
    }
    if (c_.tools.empty() && leading == 0) return;
    append_fixed(out_, "<|im_start|>system\n");
    if (!c_.tools.empty()) {
      append_fixed(out_, kToolsBefore);
      for (const std::string& tool : c_.tools) {
        append_plain(out_, "\n");
        append_plain(out_, tool);
      }
      append_fixed(out_, kToolsAfter);
      if (!text.empty()) append_plain(out_, "\n\n");
    }
    append_plain(out_, text);
    append_fixed(out_, "<|im_end|>\n");
  }

  // The index of the last message in which a user asks for something; -1 where lenient rules accept that there is none.
  // Assistant turns after it belong to one running answer, which tool results interrupt but do not end.
  Result<ptrdiff_t> last_query() const {
    for (size_t i = c_.messages.size(); i-- > 0;) {
      if (c_.messages[i].role != ChatRole::kUser) continue;
      const std::string_view text = content(i).text();
      if (!text.starts_with("<tool_response>") || !text.ends_with("</tool_response>")) return static_cast<ptrdiff_t>(i);
    }
    if (rules_ == ChatRules::kLenient) return -1;
    return invalid("messages: no user query found; at least one user message must hold more than tool responses");
  }

  void turn(std::string_view header, size_t i) {
    append_fixed(out_, header);
    append_slice(out_, content(i));
    append_fixed(out_, "<|im_end|>\n");
  }

  void assistant_turn(size_t i, bool running) {
    const ChatMessage& m = c_.messages[i];
    Prompt field;
    if (m.reasoning) field.text = *m.reasoning;
    const Answer answer = m.reasoning ? Answer{stripped(Slice(field)), content(i)} : split_thinking(content(i));
    append_fixed(out_, "<|im_start|>assistant\n");
    if (running || (c_.preserve_thinking && version_ == Version::kQwen36)) {
      append_fixed(out_, "<think>\n");
      append_slice(out_, answer.reasoning);
      append_fixed(out_, "\n</think>\n\n");
    }
    append_slice(out_, answer.content);
    for (size_t k = 0; k < m.tool_calls.size(); ++k) {
      if (k > 0) {
        append_fixed(out_, "\n");
      } else if (!stripped(answer.content).text().empty()) {
        append_fixed(out_, "\n\n");
      }
      tool_call(m.tool_calls[k]);
    }
    append_fixed(out_, "<|im_end|>\n");
  }

  void tool_call(const ChatToolCall& call) {
    append_fixed(out_, "<tool_call>\n<function=");
    append_plain(out_, call.name);
    append_fixed(out_, ">\n");
    for (const ChatArgument& a : call.arguments) {
      append_fixed(out_, "<parameter=");
      append_plain(out_, a.name);
      append_fixed(out_, ">\n");
      append_plain(out_, a.is_json ? json_value(a.value) : a.value);
      append_fixed(out_, "\n</parameter>\n");
    }
    append_fixed(out_, "</function>\n</tool_call>");
  }

  // The 3.5 templates print these three as Python does, everything else as JSON.
  std::string_view json_value(std::string_view json) const {
    if (version_ == Version::kQwen36) return json;
    return json == "true" ? "True" : json == "false" ? "False" : json == "null" ? "None" : json;
  }

  // Results in a row share one user turn.
  void tool_result(size_t i) {
    const auto is_result = [&](size_t k) { return c_.messages[k].role == ChatRole::kTool; };
    // The official template forgets the header of a turn that starts the conversation; so do we, for the same bytes.
    if (i > 0 && !is_result(i - 1)) append_fixed(out_, "<|im_start|>user");
    append_fixed(out_, "\n<tool_response>\n");
    append_slice(out_, content(i));
    append_fixed(out_, "\n</tool_response>");
    if (i + 1 == c_.messages.size() || !is_result(i + 1)) append_fixed(out_, "<|im_end|>\n");
  }

  const Version version_;
  const Conversation& c_;
  const ChatRules rules_;
  std::vector<Prompt> contents_;  // of each message
  Prompt out_;
};

// tokenizer_config.json's chat_template: a text, or a list of {name, template} of which "default" counts.
std::optional<std::string> template_in_config(const nlohmann::ordered_json& config) {
  if (!config.is_object() || !config.contains("chat_template")) return std::nullopt;
  const auto& field = config["chat_template"];
  if (field.is_string()) return field.get<std::string>();
  if (!field.is_array()) return std::nullopt;
  for (const auto& entry : field) {
    if (entry.is_object() && entry.value("name", nlohmann::ordered_json()) == "default" && entry.contains("template") &&
        entry["template"].is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return std::nullopt;
}

std::string known_names() {
  std::string names;
  for (const Known& k : kKnown) names += fmt::format("{}{}", names.empty() ? "" : ", ", k.name);
  return names;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder) {
  constexpr uint64_t kLimit = uint64_t{1} << 24;
  std::filesystem::path path = folder / "chat_template.jinja";
  std::string jinja;
  if (std::error_code error; std::filesystem::exists(path, error)) {
    CALLA_ASSIGN(jinja, read_file(path, kLimit));
  } else {
    path = folder / "tokenizer_config.json";
    CALLA_ASSIGN(const std::string text, read_file(path, kLimit));
    const auto config = parse_json(text);
    if (!config) return invalid(fmt::format("{}: {}", path.string(), config.error().message));
    std::optional<std::string> field = template_in_config(*config);
    if (!field) {
      return fail(
          Error::Code::kNotFound,
          fmt::format("{} has no chat_template and there is no chat_template.jinja beside it; to use one anyway, say "
                      "--template qwen3.6",
                      path.string()));
    }
    jinja = *std::move(field);
  }
  auto found = identify(jinja);
  if (!found) found.error().message = fmt::format("{}: {}", path.string(), found.error().message);
  return found;
}

Result<ChatTemplate> ChatTemplate::identify(std::string_view jinja) {
  std::string text(jinja);
  std::erase(text, '\r');
  text.erase(text.find_last_not_of(" \t\n") + 1);
  const std::string hash = sha256_hex(text);
  for (const Known& k : kKnown) {
    if (k.sha256 == hash) return ChatTemplate(k.version);
  }
  return fail(
      Error::Code::kUnsupported,
      fmt::format(
          "not a chat template that Calla knows (SHA-256 {}…); if the model was trained on an official one, name it "
          "with --template ({})",
          hash.substr(0, 12), known_names()));
}

Result<ChatTemplate> ChatTemplate::named(std::string_view name) {
  for (const Known& k : kKnown) {
    if (k.name == name) return ChatTemplate(k.version);
  }
  return invalid(fmt::format("unknown chat template \"{}\"; expected one of {}", name, known_names()));
}

std::string_view ChatTemplate::name() const {
  return std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) { return k.version == version_; })
      ->name;
}

Result<Prompt> ChatTemplate::render(const Conversation& conversation, ChatRules rules) const {
  return Renderer(version_, conversation, rules).render();
}

}  // namespace calla
