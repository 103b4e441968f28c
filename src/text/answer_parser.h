#pragma once

// From the text of an answer, as it is generated, to reasoning, text and tool calls.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/tool_types.h"

namespace calla {

struct AnswerEvent {
  enum class Kind : uint8_t {
    kReasoning,
    kText,
    kCallBegin,      // text: the name of the function
    kCallArguments,  // text: a piece of the JSON object of arguments
    kCallEnd,
  };
  Kind kind = Kind::kText;
  std::string text;
  int call = 0;  // of a call's events: 0 for the first call of the answer, 1 for the second, …
};

// Reads, while the text streams in,
//
//   [<think>\n] reasoning \n</think>\n\n text \n\n<tool_call>\n<function=NAME>\n
//   <parameter=KEY>\nVALUE\n</parameter>\n … </function>\n</tool_call>\n<tool_call> …
//
// However the text is cut, the joined events are the same, and what is held back is bounded (about 2 KiB, and values
// that are not strings). Every text is accepted: what is no call stays what it was, reasoning or text.
//
// Reasoning begins at once if the prompt ends inside it, else with a <think> at the start; it ends at </think>, or at a
// call of a known tool. Line ends next to the markers are dropped. Without tools there are no calls, only text.
//
// A call begins when its first parameter, or its end, is certain. A value is the text between its tags without one
// newline at each end, bytes as they are: a </parameter> ends it only if the call goes on after it as a call does, and
// a whole call inside a value is part of the value. Missing and repeated closing tags are forgiven. Values are JSON
// where the schema allows JSON of that type, else strings; a value that no type fits is passed on as the string that it
// is, for the caller of the tool to refuse. Of two parameters with one name the first counts. The joined arguments of a
// call are one JSON object, also where the text ends inside it.
//
// Not thread-safe; one for each answer. REQUIRES: the whole text is UTF-8. Pieces of whole characters give events of
// whole characters.
class AnswerParser {
 public:
  AnswerParser(bool in_reasoning, std::shared_ptr<const ToolTypes> tools);
  // Without tools.
  explicit AnswerParser(bool in_reasoning) : AnswerParser(in_reasoning, nullptr) {}

  void push(std::string_view text, std::vector<AnswerEvent>& out);
  // The end of the text: what was held back, and the ends of what is open.
  void finish(std::vector<AnswerEvent>& out);

  // Calls begun so far.
  int calls() const { return calls_; }

 private:
  enum class State : uint8_t {
    kStart,  // an opening marker may follow
    kReasoning,
    kText,
    kCall,  // between parameters
    kCallEnded,
    kValueStart,
    kValue,
  };
  // What stands at a place: not this; it depends on what comes; this, up to `end`.
  struct Match {
    enum class Kind : uint8_t { kNo, kUndecided, kYes } kind = Kind::kNo;
    size_t end = 0;
    std::string_view name;
    explicit operator bool() const { return kind == Kind::kYes; }
    bool undecided() const { return kind == Kind::kUndecided; }
  };

  // Each does one step and returns whether there may be another.
  bool step(std::vector<AnswerEvent>& out);
  bool start();
  bool prose(AnswerEvent::Kind kind, std::vector<AnswerEvent>& out);
  bool call(std::vector<AnswerEvent>& out);
  bool call_ended();
  bool value_start();
  bool value(std::vector<AnswerEvent>& out);

  std::string_view rest(size_t at) const { return std::string_view(held_).substr(at); }
  static Match first_of(std::initializer_list<Match> matches);
  Match literal(size_t at, std::string_view text) const;
  Match spaces(size_t at) const;
  Match named(size_t at, std::string_view tag) const;
  Match end_of_text(size_t at) const;
  Match function(size_t at) const;
  Match opening(size_t at) const;
  Match goes_on(size_t at) const;
  Match value_end(size_t at);
  Match nested_value_end(size_t at);

  void let_out(AnswerEvent::Kind kind, std::string_view text, std::vector<AnswerEvent>& out);
  void begin_call(std::string_view name, std::vector<AnswerEvent>& out);
  void end_call(std::vector<AnswerEvent>& out);
  void begin_parameter(std::string_view name, std::vector<AnswerEvent>& out);
  void add_value(std::string_view piece, std::vector<AnswerEvent>& out);
  void end_value(std::vector<AnswerEvent>& out);
  void emit(AnswerEvent::Kind kind, std::string_view text, std::vector<AnswerEvent>& out) const;

  const std::shared_ptr<const ToolTypes> tools_;
  State state_;
  bool last_ = false;      // the text is complete
  bool unclosed_ = false;  // a call ended the reasoning, whose </think> may still come
  bool fresh_ = true;      // nothing of this reasoning or text was let out yet
  std::string held_;       // from at_ on: what is not decided
  size_t at_ = 0;
  std::string newlines_;  // before at_: let out with the next letter, or dropped before a marker

  int calls_ = 0;
  std::string name_;                       // of the call
  std::unordered_set<std::string> given_;  // its parameters
  bool dropped_ = false;                   // the parameter was given before
  ToolTypes::Mask types_ = 0;
  std::string value_;       // not yet let out
  bool streaming_ = false;  // the value is a string
  int nested_ = 0;          // calls that the value quotes
};

}  // namespace calla
