#include "engine/answer_memory.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "base/random.h"
#include "text/answer_parser.h"
#include "text/chat_json.h"

namespace calla {
namespace {

constexpr size_t kMostAnswers = 1024, kMostTokens = 2 << 20;

// Compares as JSON does: the order of keys and 1 against 1.0 make no difference.
struct Call {
  std::string name;
  nlohmann::json arguments;
  bool operator==(const Call&) const = default;
};

// What people see of an answer.
struct Visible {
  std::string text;
  std::vector<Call> calls;
  bool operator==(const Visible&) const = default;
};

std::string stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin));
}

Visible visible(std::string_view text, bool in_reasoning, std::shared_ptr<const ToolTypes> tools) {
  AnswerParser parser(in_reasoning, std::move(tools));
  std::vector<AnswerEvent> events;
  parser.push(text, events);
  parser.finish(events);
  Visible out;
  std::string arguments;
  for (const AnswerEvent& e : events) {
    switch (e.kind) {
      case AnswerEvent::Kind::kReasoning:
        break;
      case AnswerEvent::Kind::kText:
        out.text += e.text;
        break;
      case AnswerEvent::Kind::kCallBegin:
        out.calls.push_back({e.text, {}});
        arguments.clear();
        break;
      case AnswerEvent::Kind::kCallArguments:
        arguments += e.text;
        break;
      case AnswerEvent::Kind::kCallEnd:
        if (const auto parsed = parse_json(arguments)) out.calls.back().arguments = *parsed;
        break;
    }
  }
  out.text = stripped(out.text);
  return out;
}

Visible visible(const ChatMessage& message) {
  Visible out;
  for (const ChatPart& part : message.content) out.text += part.text;
  constexpr std::string_view kClose = "</think>";
  if (const size_t close = out.text.rfind(kClose); !message.reasoning && close != std::string::npos) {
    out.text.erase(0, close + kClose.size());
  }
  out.text = stripped(out.text);
  for (const ChatToolCall& call : message.tool_calls) {
    Call& c = out.calls.emplace_back(Call{call.name, nlohmann::json::object()});
    for (const ChatArgument& a : call.arguments) {
      if (!a.is_json) {
        c.arguments[a.name] = a.value;
      } else if (const auto parsed = parse_json(a.value)) {
        c.arguments[a.name] = *parsed;
      }
    }
  }
  return out;
}

// Finds the headers of turns in a prompt.
class Headers {
 public:
  explicit Headers(const Tokenizer& tokenizer) : tokenizer_(tokenizer), start_(tokenizer.control_id("<|im_start|>")) {}

  struct Header {
    std::string role;
    size_t end = 0;  // where the turn's content begins
  };
  // Of the turn that begins at `at`; nothing where none does.
  std::optional<Header> at(std::span<const int32_t> ids, size_t at) const {
    constexpr size_t kLongest = 16;
    if (!start_ || ids[at] != *start_) return std::nullopt;
    Header header;
    for (size_t i = at + 1; i < std::min(ids.size(), at + kLongest); ++i) {
      const std::string_view piece = tokenizer_.bytes(ids[i]);
      if (piece == "\n") {
        header.end = i + 1;
        return header;
      }
      header.role += piece;
    }
    return std::nullopt;
  }
  // Of the last turn.
  std::optional<Header> last(std::span<const int32_t> ids) const {
    for (size_t i = ids.size(); start_ && i-- > 0;) {
      if (ids[i] == *start_) return at(ids, i);
    }
    return std::nullopt;
  }

 private:
  const Tokenizer& tokenizer_;
  const std::optional<int32_t> start_;
};

}  // namespace

struct AnswerMemory::Record {
  std::vector<int32_t> tokens;  // from the end of the header to the end of the answer
  Visible visible;
};

AnswerMemory::AnswerMemory() : seed_(uint64_t{std::random_device{}()} << 32 | std::random_device{}()) {}

AnswerMemory::~AnswerMemory() = default;

// With a seed that nobody knows, since a collision would put one conversation's reasoning into another.
uint64_t AnswerMemory::key(std::span<const int32_t> tokens) const {
  uint64_t h = seed_;
  for (const int32_t id : tokens) h = Random(h ^ static_cast<uint32_t>(id)).next();
  return h;
}

void AnswerMemory::remember(const Model& model, std::span<const int32_t> prompt, const Generation& answer,
                            std::shared_ptr<const ToolTypes> tools) {
  const auto header = Headers(model.tokenizer()).last(prompt);
  if (!header || answer.tokens.empty() || answer.finish == FinishReason::kStopString) return;
  auto record = std::make_shared<Record>();
  record->tokens.assign(prompt.begin() + static_cast<ptrdiff_t>(header->end), prompt.end());
  for (const Sampled& t : answer.tokens) record->tokens.push_back(t.id);
  if (answer.finish == FinishReason::kStopToken) record->tokens.pop_back();
  record->visible = visible(answer.text, model.ends_in_reasoning(prompt), std::move(tools));

  const uint64_t k = key(prompt.first(header->end));
  const std::lock_guard lock(mutex_);
  tokens_ += record->tokens.size();
  entries_.push_front({k, std::move(record)});
  by_key_.emplace(k, entries_.begin());
  while (entries_.size() > kMostAnswers || tokens_ > kMostTokens) {
    const auto last = std::prev(entries_.end());
    const auto [begin, end] = by_key_.equal_range(last->key);
    by_key_.erase(std::find_if(begin, end, [&](const auto& e) { return e.second == last; }));
    tokens_ -= last->record->tokens.size();
    entries_.erase(last);
  }
}

std::shared_ptr<const AnswerMemory::Record> AnswerMemory::recall(std::span<const int32_t> header,
                                                                 const ChatMessage& message) {
  const uint64_t k = key(header);
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = by_key_.equal_range(k);
  if (begin == end) return nullptr;
  const Visible wanted = visible(message);
  const auto same = std::find_if(begin, end, [&](const auto& e) { return e.second->record->visible == wanted; });
  if (same == end) return nullptr;
  entries_.splice(entries_.begin(), entries_, same->second);
  return entries_.front().record;
}

Result<ChatPrompt> encode_chat(const Model& model, Conversation conversation, AnswerMemory& memory) {
  if (conversation.thinking == false) conversation.preserve_thinking = true;
  CALLA_ASSIGN(const std::vector<int32_t> rendered, model.encode(conversation));
  const Headers headers(model.tokenizer());
  const auto think = model.tokenizer().control_id("<think>"), end = model.tokenizer().control_id("<|im_end|>"),
             result = model.tokenizer().control_id("<tool_response>");
  // The template writes each assistant's message as one turn, in order.
  auto message = conversation.messages.begin();
  const auto next_answer = [&]() -> const ChatMessage* {
    message = std::find_if(message, conversation.messages.end(),
                           [](const ChatMessage& m) { return m.role == ChatRole::kAssistant; });
    return message == conversation.messages.end() ? nullptr : &*message++;
  };
  ChatPrompt out;
  std::string before;  // the role of the turn before; "tool" for results
  int last_header = 0;
  for (size_t i = 0; i < rendered.size();) {
    const auto header = headers.at(rendered, i);
    if (!header) {
      out.ids.push_back(rendered[i++]);
      continue;
    }
    out.ids.insert(out.ids.end(), rendered.begin() + static_cast<ptrdiff_t>(i),
                   rendered.begin() + static_cast<ptrdiff_t>(header->end));
    i = header->end;
    std::string role = header->role;
    if (role == "user" && i < rendered.size() && rendered[i] == result) role = "tool";
    last_header = static_cast<int>(out.ids.size());
    const bool asks = role == "user", answers = role == "assistant" && before == "user";
    if (asks || answers || before == "system") out.boundaries.push_back(last_header);
    before = role;
    if (role != "assistant") continue;
    const ChatMessage* const answer = next_answer();
    if (answer == nullptr || i == rendered.size() || rendered[i] != think) continue;
    if (const auto record = memory.recall(out.ids, *answer)) {
      out.ids.insert(out.ids.end(), record->tokens.begin(), record->tokens.end());
      while (i < rendered.size() && rendered[i] != end) ++i;
    }
  }
  if (last_header > 0 && (out.boundaries.empty() || out.boundaries.back() != last_header)) {
    out.boundaries.push_back(last_header);
  }
  out.in_reasoning = model.ends_in_reasoning(out.ids);
  return out;
}

}  // namespace calla
