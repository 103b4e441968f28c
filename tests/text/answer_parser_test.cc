#include "text/answer_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/random.h"
#include "text/chat_json.h"
#include "text/chat_request.h"
#include "text/chat_template.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerEvent::Kind;

const std::vector<std::string> kTools = {
    R"({"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {
      "path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}, "force": {"type": "boolean"},
      "options": {"type": "object"}, "lines": {"type": "array", "items": {"type": "string"}}}}}})",
    R"({"type": "function", "function": {"name": "union", "parameters": {"type": "object", "properties": {
      "flag": {"type": ["boolean", "null"]}, "text": {"type": ["string", "null"]}, "ratio": {"type": "number"},
      "list": {"anyOf": [{"type": "string"}, {"type": "array"}]}, "node": {"$ref": "#/$defs/node"}, "any": {},
      "choice": {"enum": ["a", 1]}, "id": {"type": ["string", "integer"]}},
      "additionalProperties": {"type": "number"},
      "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}}}})",
    R"({"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}})",
};

struct Call {
  std::string name, arguments;
  bool ended = false;
  bool operator==(const Call&) const = default;
};
struct Answer {
  std::string reasoning, text;
  std::vector<Call> calls;
  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& a, std::ostream* out) {
  *out << "reasoning «" << a.reasoning << "» text «" << a.text << "»";
  for (const Call& c : a.calls) *out << " " << c.name << " " << c.arguments << (c.ended ? "" : " (open)");
}

// Joins events, and checks their order.
class Joined {
 public:
  void add(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& e : events) {
      const int last = static_cast<int>(answer.calls.size()) - 1;
      const bool open = last >= 0 && !answer.calls[last].ended;
      switch (e.kind) {
        case Kind::kReasoning:
          EXPECT_TRUE(answer.text.empty() && answer.calls.empty()) << "reasoning after the answer began";
          answer.reasoning += e.text;
          break;
        case Kind::kText:
          EXPECT_FALSE(open) << "text inside a call";
          answer.text += e.text;
          break;
        case Kind::kCallBegin:
          EXPECT_FALSE(open);
          EXPECT_EQ(e.call, last + 1);
          answer.calls.push_back({e.text, "", false});
          break;
        case Kind::kCallArguments:
          ASSERT_TRUE(open && e.call == last);
          answer.calls[last].arguments += e.text;
          break;
        case Kind::kCallEnd:
          ASSERT_TRUE(open && e.call == last);
          answer.calls[last].ended = true;
          break;
      }
      EXPECT_TRUE(e.kind == Kind::kCallEnd || !e.text.empty());
    }
  }
  Answer answer;
};

std::shared_ptr<const ToolTypes> types() {
  static const auto kTypes = std::make_shared<const ToolTypes>(kTools);
  return kTypes;
}

template <class Cut>
Answer read(const std::string& text, bool reasoning, const std::shared_ptr<const ToolTypes>& tools, Cut&& cut) {
  AnswerParser parser(reasoning, tools);
  Joined joined;
  for (size_t at = 0; at < text.size();) {
    const size_t n = std::min<size_t>(cut(at), text.size() - at);
    std::vector<AnswerEvent> events;
    parser.push(std::string_view(text).substr(at, n), events);
    joined.add(events);
    at += n;
  }
  std::vector<AnswerEvent> events;
  parser.finish(events);
  joined.add(events);
  EXPECT_EQ(parser.calls(), static_cast<int>(joined.answer.calls.size()));
  return joined.answer;
}

// The answer to a text that comes at once, byte by byte, in two parts cut anywhere, and in random parts.
Answer parse(const std::string& text, bool reasoning = false, const std::shared_ptr<const ToolTypes>& tools = types()) {
  const Answer whole = read(text, reasoning, tools, [&](size_t) { return text.size(); });
  EXPECT_EQ(read(text, reasoning, tools, [](size_t) { return 1; }), whole);
  for (size_t cut = 1; cut < text.size(); ++cut)
    EXPECT_EQ(read(text, reasoning, tools, [&](size_t at) { return at == 0 ? cut : text.size(); }), whole) << cut;
  Random random(text.size());
  for (int round = 0; round < 20; ++round)
    EXPECT_EQ(read(text, reasoning, tools, [&](size_t) { return 1 + random.below(12); }), whole);
  for (const Call& c : whole.calls) {
    EXPECT_TRUE(c.ended);
    const auto json = parse_json(c.arguments);
    EXPECT_TRUE(json && json->is_object()) << c.arguments;
  }
  return whole;
}

std::string in_call(const std::string& inside, const std::string& name = "write") {
  return "<tool_call>\n<function=" + name + ">\n" + inside + "</function>\n</tool_call>";
}
std::string parameter(const std::string& key, const std::string& value) {
  return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
}
// The JSON that a value becomes.
std::string value(const std::string& key, const std::string& text, const std::string& tool = "union") {
  const Answer a = parse(in_call(parameter(key, text), tool));
  if (a.calls.size() != 1) return "no call";
  const std::string begin = "{\"" + key + "\": ";
  EXPECT_TRUE(a.calls[0].arguments.starts_with(begin)) << a.calls[0].arguments;
  return a.calls[0].arguments.substr(begin.size(), a.calls[0].arguments.size() - begin.size() - 1);
}

TEST(AnswerParser, ReasoningAndText) {
  struct Case {
    bool open;
    std::string text, reasoning, answer;
  };
  const Case cases[] = {
      {true, "I think.\n</think>\n\nYes.", "I think.", "Yes."},
      {true, "\n</think>\n\nYes.\n", "", "Yes.\n"},
      {true, "</think>Yes.", "", "Yes."},
      {true, "a\n\nb </thin </think>\n\n\n< b", "a\n\nb </thin ", "< b"},
      {true, "never closed\n", "never closed\n", ""},
      {true, "x</thi", "x</thi", ""},
      {true, "", "", ""},
      {true, "\n\n", "", ""},
      {false, "Plain\n\nanswer <think>", "", "Plain\n\nanswer <think>"},
      {false, "<think>\nhm\n</think>\n\nYes.", "hm", "Yes."},
      {false, "\n<thinking is hard", "", "\n<thinking is hard"},
      {false, "<thi", "", "<thi"},
      {false, "", "", ""},
      {true, "a</think></think>b", "a", "</think>b"},
      {false, "a < b && c <d>", "", "a < b && c <d>"},
      {false, std::string(300, '\n') + "<think>", "", std::string(300, '\n') + "<think>"},
  };
  for (const Case& c : cases) {
    for (const auto& tools : {types(), std::shared_ptr<const ToolTypes>()})
      EXPECT_EQ(parse(c.text, c.open, tools), (Answer{c.reasoning, c.answer, {}})) << c.text;
  }
}

// What one more piece of text lets out, joined.
struct Pushed {
  AnswerParser parser;
  std::vector<AnswerEvent> out{};
  std::string operator()(std::string_view text) {
    out.clear();
    parser.push(text, out);
    std::string joined;
    for (const auto& e : out) joined += e.text;
    return joined;
  }
};

TEST(AnswerParser, HoldsBackOnlyWhatCouldBeAMarker) {
  Pushed push{AnswerParser(true)};
  EXPECT_EQ(push("\nab\n"), "ab");
  EXPECT_EQ(push("c"), "\nc");
  EXPECT_EQ(push("\n</thi"), "");
  EXPECT_EQ(push("nk>\n"), "");
  EXPECT_EQ(push("\n"), "");
  EXPECT_EQ(push("ok"), "ok");
  EXPECT_EQ(push.out[0].kind, Kind::kText);
}

TEST(AnswerParser, Calls) {
  EXPECT_EQ(parse(in_call("", "now")), (Answer{"", "", {{"now", "{}", true}}}));
  EXPECT_EQ(parse("I look.\n\n" + in_call(parameter("path", "a b")) + "\n" + in_call("", "now") + "\n"),
            (Answer{"", "I look.", {{"write", R"({"path": "a b"})", true}, {"now", "{}", true}}}));
  EXPECT_EQ(parse("Hm.\n</think>\n\n" + in_call("", "now"), true), (Answer{"Hm.", "", {{"now", "{}", true}}}));
  EXPECT_EQ(parse(in_call("", "now") + "\n\nDone.\n"), (Answer{"", "Done.\n", {{"now", "{}", true}}}));
  EXPECT_EQ(parse(in_call("", "unheard_of")), (Answer{"", "", {{"unheard_of", "{}", true}}}));
  EXPECT_EQ(parse(in_call("", "now"), false, nullptr), (Answer{"", in_call("", "now"), {}}));
}

TEST(AnswerParser, CallsInsideReasoning) {
  const std::string call = in_call(parameter("path", "x"));
  const std::vector<Call> calls = {{"write", R"({"path": "x"})", true}};
  EXPECT_EQ(parse("I call\n" + call, true), (Answer{"I call", "", calls}));
  EXPECT_EQ(parse("I call\n" + call + "\n</think>\n\nSo.", true), (Answer{"I call", "So.", calls}));
  EXPECT_EQ(parse("I call\n" + call + "\n</think>\n\n" + call, true), (Answer{"I call", "", {calls[0], calls[0]}}));
  // Thinking about the format is not a call.
  const std::string about = "The form is " + in_call("", "example") + ", or <tool_call>{}</tool_call>.";
  EXPECT_EQ(parse(about + "\n</think>\n\nYes.", true), (Answer{about, "Yes.", {}}));
}

TEST(AnswerParser, StringsAreVerbatim) {
  for (const std::string text : {"",
                                 " ",
                                 "\n",
                                 "\n\n",
                                 "  indented\n\ttabs\r\n",
                                 "\nleading",
                                 "trailing\n",
                                 "a < b && c > d & \"quoted\" \\n $1 'x'",
                                 "<b>bold</b>",
                                 "</parameter",
                                 "</parameters>",
                                 "< /parameter>",
                                 "x</parameter>y",
                                 "print(\"</parameter>\")",
                                 "</parameter>\nstill",
                                 "</function>\nstill",
                                 "</tool_call>\nstill",
                                 "<parameter=path>",
                                 "a<parameter=mode>\nb",
                                 "\n<parameter=unknown>\nvalue",
                                 "<function=write>",
                                 "<tool_call>",
                                 "<tool_call>\nno function",
                                 "</think>",
                                 "<think>",
                                 "<|im_end|>",
                                 "\x01\x02\x7f",
                                 "Grüße, 世界 🌍",
                                 "5",
                                 "true",
                                 "null",
                                 "{\"a\":1}",
                                 "[1]",
                                 "\"5\"",
                                 "\"</parameter>\\n</function>\\n</tool_call>\""}) {
    const Answer a = parse(in_call(parameter("content", text) + parameter("mode", "7")));
    ASSERT_EQ(a.calls.size(), 1u) << text;
    EXPECT_EQ(a.text, "") << text;
    EXPECT_EQ(a.calls[0].arguments, python_json(Json{{"content", text}, {"mode", 7}})) << text;
  }
}

TEST(AnswerParser, QuotedCallsStayInTheValue) {
  const std::string quoted =
      "The form:\n" + in_call(parameter("path", "x") + parameter("content", "y")) + "\nThat is it.";
  const Answer a = parse("Ok.\n\n" + in_call(parameter("content", quoted) + parameter("mode", "1")));
  EXPECT_EQ(a, (Answer{"", "Ok.", {{"write", python_json(Json{{"content", quoted}, {"mode", 1}}), true}}}));
  // One that is quoted without its end does not swallow the end of the call itself.
  const std::string half = "<tool_call>\n<function=f>\n<parameter=x>";
  EXPECT_EQ(parse(in_call(parameter("content", half))),
            (Answer{"", "", {{"write", python_json(Json{{"content", half}}), true}}}));
}

TEST(AnswerParser, MissingAndRepeatedTags) {
  const Answer expected = {"", "", {{"write", R"({"path": "x", "mode": 5})", true}}};
  const std::string begin = "<tool_call>\n<function=write>\n<parameter=path>\nx";
  for (const std::string& text : {
           begin + "\n<parameter=mode>\n5\n</parameter>\n</function>\n</tool_call>",
           begin + "\n</parameter>\n<parameter=mode>\n5\n</function>\n</tool_call>",
           begin + "\n</parameter>\n<parameter=mode>\n5\n</tool_call>",
           begin + "\n</parameter>\n<parameter=mode>\n5\n</parameter>\n</tool_call>",
           begin + "\n</parameter>\n<parameter=mode>\n5\n</parameter>\n</function>",
           begin + "\n</parameter>\n<parameter=mode>\n5\n</parameter>\n",
           begin + "\n</parameter>\n<parameter=mode>\n5\n",
           begin + "\n</parameter>\n<parameter=mode>\n5",
           begin + "\n</parameter>\n</parameter>\n<parameter=mode>\n5\n</parameter></parameter></function></tool_call>",
           begin + "\n</parameter>\n<parameter=mode>\n5\n</parameter>\n</function>\n</function>\n</tool_call></"
                   "tool_call>\n",
           begin + "</parameter><parameter=mode>5</parameter></function></tool_call>",
           std::string(
               "<tool_call><function=write><parameter=path>x</parameter> <parameter=mode> 5 </parameter></function>"),
           begin.substr(12) + "\n</parameter>\n<parameter=mode>\n5\n</parameter>\n</function>\n</tool_call>",
       }) {
    EXPECT_EQ(parse(text), expected) << text;
  }
  const std::string second = fmt::format("\n{}", in_call("", "now"));
  for (const std::string& text : {begin + "\n</parameter>" + second, begin + "\n</parameter>\n</function>" + second,
                                  begin + "\n</tool_call>" + second, begin + "\n</function>" + second}) {
    EXPECT_EQ(parse(text), (Answer{"", "", {{"write", R"({"path": "x"})", true}, {"now", "{}", true}}})) << text;
  }
  // Of two parameters with one name the first counts.
  EXPECT_EQ(parse(in_call(parameter("path", "x") + parameter("path", "y") + parameter("mode", "5"))), expected);
}

TEST(AnswerParser, WhatIsNoCallIsText) {
  for (const std::string text :
       {"<tool_call>", "<tool_call>\n", "<tool_call>\n<function=", "<tool_call>\n<function=write",
        "<tool_call>\n<function=>\n", "<tool_call>\n<function=write>\n",
        "<tool_call>\n<function=write>\n{\"path\": 1}\n</function>\n</tool_call>",
        "<tool_call>\n{\"name\": \"write\"}\n</tool_call>", "<tool_call>\n<function=a\nb>\n</function>\n</tool_call>",
        "a <tool_call> b", "<function=unheard_of>\n</function>", "</tool_call>", "</function>\n</tool_call>",
        "<tool_call>\n<function=write>\n<parameter=>\nx\n</parameter>\n</function>\n</tool_call>"}) {
    EXPECT_EQ(parse(text), (Answer{"", text, {}})) << text;
  }
  const std::string far = "<tool_call>" + std::string(300, ' ') + "<function=f>\n</function>\n</tool_call>";
  EXPECT_EQ(parse(far), (Answer{"", far, {}}));
  const std::string long_name = in_call("", std::string(300, 'n'));
  EXPECT_EQ(parse(long_name), (Answer{"", long_name, {}}));
}

TEST(AnswerParser, ValuesAreTyped) {
  EXPECT_EQ(value("ratio", "1.50"), "1.5");
  EXPECT_EQ(value("ratio", " -3 "), "-3");
  EXPECT_EQ(value("ratio", "123456789012345678901234567890"), "123456789012345678901234567890");
  EXPECT_EQ(value("ratio", "about 5"), R"("about 5")");
  EXPECT_EQ(value("ratio", "05"), R"("05")");
  EXPECT_EQ(value("ratio", "1e999"), R"("1e999")");
  EXPECT_EQ(value("ratio", "NaN"), R"("NaN")");
  EXPECT_EQ(value("ratio", "null"), "null");
  EXPECT_EQ(value("ratio", ""), R"("")");
  EXPECT_EQ(value("ratio", "\"5\""), R"("\"5\"")");
  EXPECT_EQ(value("flag", "false"), "false");
  EXPECT_EQ(value("flag", "True"), "true");
  EXPECT_EQ(value("flag", "None"), "null");
  EXPECT_EQ(value("flag", "NULL"), "null");
  EXPECT_EQ(value("flag", "maybe"), R"("maybe")");
  EXPECT_EQ(value("text", "null"), "null");
  EXPECT_EQ(value("text", "None"), R"("None")");
  EXPECT_EQ(value("text", "nullable"), R"("nullable")");
  EXPECT_EQ(value("text", "nu"), R"("nu")");
  EXPECT_EQ(value("text", "5"), R"("5")");
  EXPECT_EQ(value("list", R"(["a",1])"), R"(["a", 1])");
  EXPECT_EQ(value("list", "[a"), R"("[a")");
  EXPECT_EQ(value("list", "{}"), R"("{}")");
  EXPECT_EQ(value("list", "plain"), R"("plain")");
  EXPECT_EQ(value("list", ""), R"("")");
  EXPECT_EQ(value("list", std::string(300, ' ') + "[]"), fmt::format("\"{:300}[]\"", ""));
  EXPECT_EQ(value("node", "{\"next\":{\"next\":null}}"), R"({"next": {"next": null}})");
  EXPECT_EQ(value("node", "{'next': None}"), R"("{'next': None}")");
  EXPECT_EQ(value("node", "[1]"), "[1]");
  EXPECT_EQ(value("any", "5"), R"("5")");
  EXPECT_EQ(value("choice", "1"), "1");
  EXPECT_EQ(value("choice", "a"), R"("a")");
  EXPECT_EQ(value("id", "12"), "12");
  EXPECT_EQ(value("id", "012"), R"("012")");
  EXPECT_EQ(value("unknown", "12"), "12");  // additionalProperties
  EXPECT_EQ(value("unknown", "12", "write"), R"("12")");
  EXPECT_EQ(value("mode", "5.5", "write"), "5.5");
  EXPECT_EQ(value("force", "true", "write"), "true");
  EXPECT_EQ(value("lines", "[\"</parameter>\", \"<\"]", "write"), R"(["</parameter>", "<"])");
  EXPECT_EQ(value("options", "{\n  \"a\": [1, {\"b\": \"c\"}]\n}", "write"), R"({"a": [1, {"b": "c"}]})");
  const std::string deep = std::string(60, '[') + std::string(60, ']');
  EXPECT_EQ(value("lines", deep, "write"), fmt::format("\"{}\"", deep));
}

TEST(AnswerParser, StringsStreamAsTheyCome) {
  Pushed push{AnswerParser(false, types())};
  EXPECT_EQ(push("<tool_call>\n<function=write>\n<parameter=content>"), "write{\"content\": ");
  EXPECT_EQ(push("\nline 1\n"), "\"line 1");
  EXPECT_EQ(push("say \"hi\" <"), "\\nsay \\\"hi\\\" ");
  EXPECT_EQ(push("b>"), "<b>");
  EXPECT_EQ(push("\n</parameter>"), "");
  EXPECT_EQ(push("\n<parameter=mode>"), "\", \"mode\": ");
  EXPECT_EQ(push("\n4"), "");
  EXPECT_EQ(push("2\n</parameter>\n"), "");
  EXPECT_EQ(push("</function>"), "42}");
  EXPECT_EQ(push.out.back().kind, Kind::kCallEnd);
}

TEST(AnswerParser, TimeIsLinear) {
  for (const std::string unit :
       {"\n", " ", "<", "</parameter>", "<tool_call>\n", "</parameter>\n</function>\n", "<think>"}) {
    for (const bool inside : {false, true}) {
      AnswerParser parser(false, types());
      std::vector<AnswerEvent> out;
      if (inside) parser.push("<tool_call>\n<function=write>\n<parameter=content>\n", out);
      for (int i = 0; i < 200000; ++i) parser.push(unit, out);  // minutes if each piece looked at all before it
      parser.finish(out);
    }
  }
}

// Calls that the template wrote are read back as what they were.
TEST(AnswerParser, ReadsWhatTheTemplateWrites) {
  const ChatTemplate chat(ChatTemplate::Version::kQwen36);
  Random random(17);
  const std::array<std::string, 12> pieces = {"a",  " ",      "\n",   "<", "</parameter>", "\"",
                                              "\\", "</tool", "&lt;", "é", "{}",           "<function=f>"};
  const auto random_text = [&](const char* end) {
    std::string text;
    for (size_t i = random.below(8); i > 0; --i) text += pieces[random.below(pieces.size())];
    return text + end;
  };
  int calls = 0;
  for (int round = 0; round < 3000; ++round) {
    Json arguments = Json::object();
    for (const char* key : {"content", "path"}) {
      if (random.below(3) > 0) arguments[key] = random_text("");
    }
    if (random.below(2)) arguments["mode"] = random.below(100);
    if (random.below(2)) arguments["force"] = random.below(2) == 1;
    if (random.below(3) == 0) arguments["options"] = {{"k", random_text("x")}, {"n", nullptr}};
    if (random.below(3) == 0) arguments["lines"] = {random_text("x"), "two"};
    Json request = {{"add_generation_prompt", false},
                    {"messages",
                     {{{"role", "user"}, {"content", "Hi"}},
                      {{"role", "assistant"},
                       {"reasoning_content", "Hm."},
                       {"content", "Well."},
                       {"tool_calls",
                        {{{"function", {{"name", "write"}, {"arguments", arguments}}}},
                         {{"function", {{"name", "now"}, {"arguments", Json::object()}}}}}}}}}};
    const auto conversation = read_conversation(request);
    ASSERT_TRUE(conversation);
    const auto prompt = chat.render(*conversation);
    ASSERT_TRUE(prompt);
    const std::string marker = "<|im_start|>assistant\n<think>\n";
    const size_t begin = prompt->text.find(marker) + marker.size();
    const std::string text =
        prompt->text.substr(begin, prompt->text.size() - begin - std::string("<|im_end|>\n").size());
    const Answer whole = read(text, true, types(), [&](size_t) { return 1 + random.below(20); });
    // A "</parameter>" at the end of a value reads as a tag that is repeated.
    static const std::regex kAmbiguous("</parameter>\\s*</parameter>");
    if (std::regex_search(text, kAmbiguous)) continue;
    ++calls;
    EXPECT_EQ(whole, (Answer{"Hm.", "Well.", {{"write", python_json(arguments), true}, {"now", "{}", true}}})) << text;
  }
  EXPECT_GT(calls, 1000);
}

TEST(ToolTypes, HostileSchemas) {
  std::string twice =
      R"({"name": "f", "parameters": {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [)"
      R"({"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}}})";
  const std::string loop = R"({"name": "g", "parameters": {"$ref": "#"}})";
  const ToolTypes types(
      {twice, loop, "not JSON", "[]", R"({"name": 5})", R"({"name": "h", "parameters": []})",
       R"({"name":"i","parameters":{"properties":{"a":5,"b":{"type":5},"c":{"anyOf":5},"d":{"$ref":"#/x/9"},)"
       R"("e":{"allOf":[{"type":["string","null"]},{"type":"string"}]},"f":{"type":"string","nullable":true},)"
       R"("g":{"anyOf":[{"type":"string"},{}]},"h":{"const":null},"i":{"properties":{}},"j":{"items":{}}}}})"});
  EXPECT_EQ(types.of("f", "x"), 0);
  EXPECT_TRUE(types.knows("g") && types.knows("h"));
  for (const char* key : {"a", "b", "c", "d", "g"}) EXPECT_EQ(types.of("i", key), 0) << key;
  EXPECT_EQ(types.of("i", "e"), ToolTypes::kString);
  EXPECT_EQ(types.of("i", "f"), ToolTypes::kString | ToolTypes::kNull);
  EXPECT_EQ(types.of("i", "h"), ToolTypes::kNull);
  EXPECT_EQ(types.of("i", "i"), ToolTypes::kObject);
  EXPECT_EQ(types.of("i", "j"), ToolTypes::kArray);
  EXPECT_TRUE(types.knows("i", "a"));
  EXPECT_FALSE(types.knows("i", "z"));
}

}  // namespace
}  // namespace calla
