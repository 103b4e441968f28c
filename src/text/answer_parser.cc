#include "text/answer_parser.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kToolCall = "<tool_call>", kToolCallEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr std::string_view kSpace = " \t\r\n";

// Bounds of what is held back, and so of what every piece looks at again.
constexpr size_t kMaxSpaces = 256, kMaxName = 256, kMaxRepeats = 512;
// Arguments come back inside a request, which may be nested kMaxJsonDepth deep.
constexpr int kMaxValueDepth = kMaxJsonDepth - 16;

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

bool equal_letters(std::string_view text, std::string_view lower) {
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + ('a' - 'A') : a) == b; };
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(), same);
}

bool takes_strings(ToolTypes::Mask types) {
  return types == 0 || (types & ToolTypes::kString) != 0;
}

// Whether the value that begins like this may still be JSON of one of the types.
bool may_be_json(std::string_view begin, ToolTypes::Mask types) {
  if ((types & ~ToolTypes::kString) == 0) return false;
  const size_t first = std::min(begin.find_first_not_of(kSpace), begin.size());
  if (first > kMaxSpaces) return false;
  if (first == begin.size()) return true;
  const std::string_view text = begin.substr(first);
  const auto word = [&](std::string_view w) {
    return w.starts_with(text.substr(0, w.size())) && text.size() < w.size() + kMaxSpaces;
  };
  const auto has = [&](ToolTypes::Mask m) { return (types & m) != 0; };
  const char c = text.front();
  return (has(ToolTypes::kObject) && c == '{') || (has(ToolTypes::kArray) && c == '[') ||
         (has(ToolTypes::kNumber) && (c == '-' || (c >= '0' && c <= '9'))) ||
         (has(ToolTypes::kBoolean) && (word("true") || word("false"))) || (has(ToolTypes::kNull) && word("null"));
}

ToolTypes::Mask type_of(const Json& value) {
  if (value.is_string()) return ToolTypes::kString;
  if (value.is_boolean()) return ToolTypes::kBoolean;
  if (value.is_object()) return ToolTypes::kObject;
  if (value.is_array()) return ToolTypes::kArray;
  if (value.is_null()) return ToolTypes::kNull;
  return ToolTypes::kNumber;
}

// The value as JSON, where it is no string.
std::optional<std::string> json_value(std::string_view text, ToolTypes::Mask types) {
  if ((types & ~ToolTypes::kString) == 0) return std::nullopt;
  text = trimmed(text);
  const bool strict = takes_strings(types);
  if (!strict) {
    if (equal_letters(text, "null") || equal_letters(text, "none")) return "null";
    for (const char* word : {"true", "false"}) {
      if ((types & ToolTypes::kBoolean) != 0 && equal_letters(text, word)) return word;
    }
  }
  const auto parsed = parse_json(text);
  if (!parsed || deeper_than(*parsed, kMaxValueDepth) || parsed->is_string()) return std::nullopt;
  if (strict && (type_of(*parsed) & types) == 0) return std::nullopt;
  return python_json(*parsed);
}

}  // namespace

AnswerParser::AnswerParser(bool in_reasoning, std::shared_ptr<const ToolTypes> tools)
    : tools_(tools != nullptr && !tools->empty() ? std::move(tools) : nullptr),
      state_(in_reasoning ? State::kReasoning : State::kStart) {}

void AnswerParser::push(std::string_view text, std::vector<AnswerEvent>& out) {
  held_ += text;
  while (step(out)) {
  }
  held_.erase(0, std::exchange(at_, 0));
}

void AnswerParser::finish(std::vector<AnswerEvent>& out) {
  last_ = true;
  push({}, out);
}

bool AnswerParser::step(std::vector<AnswerEvent>& out) {
  switch (state_) {
    case State::kStart:
      return start();
    case State::kReasoning:
      return prose(AnswerEvent::Kind::kReasoning, out);
    case State::kText:
      return prose(AnswerEvent::Kind::kText, out);
    case State::kCall:
      return call(out);
    case State::kCallEnded:
      return call_ended();
    case State::kValueStart:
      return value_start();
    case State::kValue:
      return value(out);
  }
  return false;
}

// ---- What stands at a place ----

AnswerParser::Match AnswerParser::literal(size_t at, std::string_view text) const {
  const std::string_view here = rest(at);
  if (here.starts_with(text)) return {Match::Kind::kYes, at + text.size(), {}};
  return {!last_ && text.starts_with(here) ? Match::Kind::kUndecided : Match::Kind::kNo, 0, {}};
}

AnswerParser::Match AnswerParser::spaces(size_t at) const {
  const std::string_view here = rest(at);
  const size_t length = std::min(here.find_first_not_of(kSpace), here.size());
  if (length > kMaxSpaces) return {};
  return {length == here.size() && !last_ ? Match::Kind::kUndecided : Match::Kind::kYes, at + length, {}};
}

// <tag=NAME>
AnswerParser::Match AnswerParser::named(size_t at, std::string_view tag) const {
  const Match begin = literal(at, tag);
  if (!begin) return begin;
  const std::string_view here = rest(begin.end).substr(0, kMaxName + 1);
  const size_t end = here.find_first_of("<>\n");
  if (end == here.npos) return {!last_ && here.size() <= kMaxName ? Match::Kind::kUndecided : Match::Kind::kNo, 0, {}};
  if (end == 0 || here[end] != '>') return {};
  return {Match::Kind::kYes, begin.end + end + 1, here.substr(0, end)};
}

AnswerParser::Match AnswerParser::end_of_text(size_t at) const {
  if (at < held_.size()) return {};
  return {last_ ? Match::Kind::kYes : Match::Kind::kUndecided, at, {}};
}

// The first of the matches that is not refused.
AnswerParser::Match AnswerParser::first_of(std::initializer_list<Match> matches) {
  for (const Match& m : matches) {
    if (m || m.undecided()) return m;
  }
  return {};
}

// <tool_call> <function=NAME>
AnswerParser::Match AnswerParser::function(size_t at) const {
  const Match tag = literal(at, kToolCall);
  if (!tag) return tag;
  const Match gap = spaces(tag.end);
  return gap ? named(gap.end, kFunction) : gap;
}

// The beginning of a call, up to its first parameter or its end. Known tools may lack the <tool_call>, as the model
// sometimes forgets it.
AnswerParser::Match AnswerParser::opening(size_t at) const {
  if (tools_ == nullptr) return {};
  Match head = function(at);
  const bool tagged = bool(head);
  if (!head && !head.undecided()) head = named(at, kFunction);
  if (!head) return head;
  if ((!tagged || state_ == State::kReasoning) && !tools_->knows(head.name)) return {};
  const Match gap = spaces(head.end);
  if (!gap) return gap;
  Match next = first_of({named(gap.end, kParameter), literal(gap.end, kFunctionEnd), literal(gap.end, kToolCallEnd)});
  next.end = gap.end;
  next.name = head.name;
  return next;
}

// Whether what follows a closing tag is what follows a parameter.
AnswerParser::Match AnswerParser::goes_on(size_t at) const {
  for (size_t p = at; p - at <= kMaxRepeats;) {
    const Match gap = spaces(p);
    if (!gap) return gap;
    const Match again = literal(gap.end, kParameterEnd);
    if (!again) {
      return first_of({again, end_of_text(gap.end), named(gap.end, kParameter), literal(gap.end, kFunctionEnd),
                       literal(gap.end, kToolCallEnd), opening(gap.end)});
    }
    p = again.end;
  }
  return {};
}

// Whether a value ends at this '<'; up to where its closing tag goes.
AnswerParser::Match AnswerParser::value_end(size_t at) {
  if (nested_ > 0) return nested_value_end(at);
  if (const Match tag = literal(at, kParameterEnd); tag) {
    const Match next = goes_on(tag.end);
    return {next.kind, tag.end, {}};
  } else if (tag.undecided()) {
    return tag;
  }
  // The closing tag is missing if something stands here that cannot be meant as text.
  if (const Match next = named(at, kParameter); next) {
    const bool new_line = at > at_ && held_[at - 1] == '\n';
    const bool expected = tools_->knows(name_, next.name) && !given_.contains(std::string(next.name));
    return {new_line && expected ? Match::Kind::kYes : Match::Kind::kNo, at, {}};
  } else if (next.undecided()) {
    return next;
  }
  for (const std::string_view closing : {kFunctionEnd, kToolCallEnd}) {
    const Match tag = literal(at, closing);
    if (tag.undecided()) return tag;
    if (!tag) continue;
    const Match gap = spaces(tag.end);
    if (!gap) return gap;
    Match next = first_of({end_of_text(gap.end), opening(gap.end)});
    if (closing == kFunctionEnd) next = first_of({next, literal(gap.end, kToolCallEnd)});
    return {next.kind, at, {}};
  }
  const Match quoted = function(at);
  if (quoted) ++nested_;
  return {quoted.undecided() ? Match::Kind::kUndecided : Match::Kind::kNo, 0, {}};
}

// Inside a call that the value quotes, only a closing that nothing follows is the value's own.
AnswerParser::Match AnswerParser::nested_value_end(size_t at) {
  const Match closing = literal(at, kToolCallEnd);
  if (closing) {
    --nested_;
    return {};
  }
  const Match quoted = function(at);
  if (quoted) {
    ++nested_;
    return {};
  }
  Match m = literal(at, kParameterEnd);
  const size_t end = m.end;
  for (const std::string_view tag : {kFunctionEnd, kToolCallEnd}) {
    if (m) m = spaces(m.end);
    if (m) m = literal(m.end, tag);
  }
  if (m) m = spaces(m.end);
  if (m) m = end_of_text(m.end);
  m.end = end;
  return first_of({m, closing, quoted});
}

// ---- Steps ----

bool AnswerParser::start() {
  const size_t solid = std::min(held_.find_first_not_of('\n', at_), held_.size());
  const Match think = solid - at_ <= kMaxSpaces ? literal(solid, kThink) : Match{};
  if (think.undecided()) return false;
  state_ = think ? State::kReasoning : State::kText;
  fresh_ = bool(think);
  if (think) at_ = think.end;
  return true;
}

// Reasoning or text, up to the marker that ends it.
bool AnswerParser::prose(AnswerEvent::Kind kind, std::vector<AnswerEvent>& out) {
  const bool closable = kind == AnswerEvent::Kind::kReasoning || unclosed_;
  size_t scan = at_;
  Match close, open;
  for (;; ++scan) {
    scan = tools_ != nullptr || closable ? held_.find('<', scan) : held_.npos;
    if (scan == held_.npos) break;
    close = closable ? literal(scan, kThinkEnd) : Match{};
    open = opening(scan);
    if (close || open || close.undecided() || open.undecided()) break;
  }
  scan = std::min(scan, held_.size());
  let_out(kind, rest(at_).substr(0, scan - at_), out);
  at_ = scan;
  if (close || open) {
    newlines_.clear();
    fresh_ = true;
  }
  if (close) {
    unclosed_ = false;
    state_ = State::kText;
    at_ = close.end;
  } else if (open) {
    unclosed_ = closable;
    state_ = State::kCall;
    begin_call(open.name, out);
    at_ = open.end;
  } else {
    if (last_ && !fresh_) emit(kind, std::exchange(newlines_, {}), out);
    return false;
  }
  return true;
}

void AnswerParser::let_out(AnswerEvent::Kind kind, std::string_view text, std::vector<AnswerEvent>& out) {
  if (fresh_) text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  if (text.empty()) return;
  fresh_ = false;
  const size_t solid = text.find_last_not_of('\n') + 1;
  if (solid > 0) emit(kind, std::exchange(newlines_, {}), out);
  emit(kind, text.substr(0, solid), out);
  newlines_ += text.substr(solid);
}

// At a place where a call goes on or ends.
bool AnswerParser::call(std::vector<AnswerEvent>& out) {
  const Match gap = spaces(at_);
  if (gap.undecided()) return false;
  const Match next = gap ? named(gap.end, kParameter) : Match{};
  const Match again = gap ? literal(gap.end, kParameterEnd) : Match{};
  if (next.undecided() || again.undecided()) return false;
  if (next) {
    begin_parameter(next.name, out);
    at_ = next.end;
    state_ = State::kValueStart;
  } else if (again) {
    at_ = again.end;
  } else {
    end_call(out);
    state_ = State::kCallEnded;
  }
  return true;
}

// After a call: its closing tags, once or more often, or none.
bool AnswerParser::call_ended() {
  const Match gap = spaces(at_);
  const Match tag =
      gap ? first_of({literal(gap.end, kToolCallEnd), literal(gap.end, kFunctionEnd), literal(gap.end, kParameterEnd)})
          : gap;
  if (tag.undecided()) return false;
  if (tag) {
    at_ = tag.end;
  } else {
    state_ = State::kText;
  }
  return true;
}

bool AnswerParser::value_start() {
  if (at_ == held_.size() && !last_) return false;
  if (rest(at_).starts_with('\n')) ++at_;
  state_ = State::kValue;
  return true;
}

bool AnswerParser::value(std::vector<AnswerEvent>& out) {
  size_t scan = at_;
  Match end;
  for (;; ++scan) {
    scan = std::min(held_.find('<', scan), held_.size());
    end = scan < held_.size() ? value_end(scan) : end_of_text(scan);
    if (end || end.undecided()) break;
  }
  // The newline before the closing tag does not belong to the value.
  const size_t solid = scan > at_ && held_[scan - 1] == '\n' ? scan - 1 : scan;
  add_value(rest(at_).substr(0, solid - at_), out);
  at_ = solid;
  if (!end) return false;
  end_value(out);
  at_ = end.end;
  state_ = State::kCall;
  return true;
}

// ---- Events ----

void AnswerParser::begin_call(std::string_view name, std::vector<AnswerEvent>& out) {
  ++calls_;
  name_ = name;
  given_.clear();
  emit(AnswerEvent::Kind::kCallBegin, name, out);
}

void AnswerParser::end_call(std::vector<AnswerEvent>& out) {
  emit(AnswerEvent::Kind::kCallArguments, given_.empty() ? "{}" : "}", out);
  out.push_back({AnswerEvent::Kind::kCallEnd, {}, calls_ - 1});
}

void AnswerParser::begin_parameter(std::string_view name, std::vector<AnswerEvent>& out) {
  std::string key = given_.empty() ? "{\"" : ", \"";
  dropped_ = !given_.emplace(name).second;
  types_ = tools_->of(name_, name);
  streaming_ = false;
  nested_ = 0;
  append_json_letters(key, name);
  if (!dropped_) emit(AnswerEvent::Kind::kCallArguments, key += "\": ", out);
}

void AnswerParser::add_value(std::string_view piece, std::vector<AnswerEvent>& out) {
  if (dropped_) return;
  std::string letters;
  if (streaming_) {
    append_json_letters(letters, piece);
  } else {
    value_ += piece;
    if (!takes_strings(types_) || may_be_json(value_, types_)) return;
    streaming_ = true;
    letters = '"';
    append_json_letters(letters, std::exchange(value_, {}));
  }
  emit(AnswerEvent::Kind::kCallArguments, letters, out);
}

void AnswerParser::end_value(std::vector<AnswerEvent>& out) {
  if (dropped_) return;
  std::string json = "\"";
  if (!streaming_) {
    const std::string text = std::exchange(value_, {});
    if (auto value = json_value(text, types_)) {
      json = *std::move(value);
    } else {
      append_json_letters(json, text);
      json += '"';
    }
  }
  emit(AnswerEvent::Kind::kCallArguments, json, out);
}

void AnswerParser::emit(AnswerEvent::Kind kind, std::string_view text, std::vector<AnswerEvent>& out) const {
  if (text.empty()) return;
  const bool of_call = kind != AnswerEvent::Kind::kReasoning && kind != AnswerEvent::Kind::kText;
  const int call = of_call ? calls_ - 1 : 0;
  if (!out.empty() && out.back().kind == kind && out.back().call == call) {
    out.back().text += text;
  } else {
    out.push_back({kind, std::string(text), call});
  }
}

}  // namespace calla
