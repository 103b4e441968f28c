#include <gtest/gtest.h>

#include <algorithm>

#include "tests/grammar/grammars.h"
#include "text/answer_parser.h"
#include "text/tool_types.h"

namespace calla::grammar_test {
namespace {

struct Call {
  std::string name, arguments;
};

// What the parser of answers reads.
std::vector<Call> read(std::string_view text, const std::shared_ptr<const ToolTypes>& types) {
  AnswerParser parser(false, types);
  std::vector<AnswerEvent> events;
  parser.push(text, events);
  parser.finish(events);
  std::vector<Call> calls;
  for (const AnswerEvent& e : events) {
    switch (e.kind) {
      case AnswerEvent::Kind::kCallBegin:
        calls.push_back({e.text, {}});
        break;
      case AnswerEvent::Kind::kCallArguments:
        calls.back().arguments += e.text;
        break;
      case AnswerEvent::Kind::kCallEnd:
        break;
      default:
        ADD_FAILURE() << "text beside the calls: " << e.text << "\nin " << text;
    }
  }
  return calls;
}

const std::pair<std::string_view, std::string_view> kTools[] = {
    {"write", R"({"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string","maxLength":60},
      "mode":{"enum":["create","append"]},"tags":{"type":"array","items":{"type":"string"},"maxItems":3}},"required":["path","content"],"additionalProperties":false})"},
    {"move",
     R"({"type":"object","properties":{"by":{"type":"integer","minimum":-5,"maximum":5},"fast":{"type":"boolean"},
      "to":{"type":"object","properties":{"x":{"type":"number","minimum":0},"label":{"type":["string","null"]}},"required":["x"],"additionalProperties":false}},"required":["by"]})"},
    {"note",
     R"({"type":"object","properties":{"text":{"type":["string","null"]},"date":{"type":"string","format":"date"},"key":{"type":"string","pattern":"^<?[a-z/]+>?$"}},"additionalProperties":false})"},
    {"ping", R"({"type":"object","properties":{}, "additionalProperties":false})"},
};

// Random ways through the grammar of tool calls: the parser of answers reads calls of these tools, and the grammars of
// their schemas allow the arguments.
TEST(ToolCalls, AreReadAsTheyWereMeant) {
  std::vector<Json> schemas;
  std::vector<std::shared_ptr<const Grammar>> arguments;
  std::vector<std::string> lines;
  for (const auto& [name, schema] : kTools) {
    schemas.push_back(*parse_json(schema));
    arguments.push_back(*Grammar::json_schema(vocabulary(), schemas.back()));
    lines.push_back(
        python_json(Json{{"type", "function"}, {"function", {{"name", name}, {"parameters", schemas.back()}}}}));
  }
  std::vector<GrammarTool> tools;
  for (size_t i = 0; i < schemas.size(); ++i) tools.push_back({std::string(kTools[i].first), &schemas[i]});
  const auto types = std::make_shared<const ToolTypes>(lines);
  const auto g = *Grammar::tool_calls(vocabulary(), tools, true);
  Random random(11);
  std::vector<uint64_t> mask(vocabulary()->words());
  int finished = 0;
  for (int walk = 0; walk < 120; ++walk) {
    GrammarMatcher m(g);
    std::string text;
    bool ended = false;
    for (int step = 0; step < 250 && !ended; ++step) {
      m.mask(mask);
      std::vector<int32_t> ids, markup;
      for (int32_t id = 0; id < vocabulary()->size(); ++id) {
        if (!allowed(mask, id) || vocabulary()->is_stop(id)) continue;
        ids.push_back(id);
        // Markers, and what they begin with, so that values end, and come close to it.
        const std::string_view bytes = tokenizer().bytes(id);
        if (bytes.find_first_of("\n</=>") != bytes.npos) markup.push_back(id);
      }
      ended = m.can_end() && (ids.empty() || random.below(3) == 0);
      if (ended) break;
      const auto& from = !markup.empty() && random.below(2) == 0 ? markup : ids;
      const int32_t id = from[random.below(from.size())];
      ASSERT_TRUE(m.accept(id));
      text += tokenizer().bytes(id);
    }
    if (!ended) continue;
    ++finished;
    const auto calls = read(text, types);
    EXPECT_FALSE(calls.empty()) << text;
    for (const Call& call : calls) {
      size_t tool = 0;
      while (tool < std::size(kTools) && kTools[tool].first != call.name) ++tool;
      ASSERT_LT(tool, std::size(kTools)) << text;
      ASSERT_TRUE(accepts(arguments[tool], call.arguments)) << call.arguments << "\nfrom " << text;
    }
  }
  EXPECT_GT(finished, 20);
}

TEST(ToolCalls, NameWhatTheyRefuse) {
  const auto error = [](std::string_view name, std::string_view schema) {
    const Json json = *parse_json(schema);
    const GrammarTool tool{std::string(name), &json};
    const auto g = Grammar::tool_calls(vocabulary(), {&tool, 1}, false);
    return g ? "" : g.error().message;
  };
  EXPECT_EQ(error("f", R"({"properties":{"a":{"not":{}}}})"), "tool f: #/properties/a/not is not supported");
  EXPECT_EQ(error("f", R"({"type":"string"})"), "tool f: #/type must be object for the parameters of a tool");
  EXPECT_EQ(error("f", R"({"properties":{"a>":{}}})"),
            "tool f: #/properties/a> has a name that a tool call cannot hold");
  EXPECT_EQ(error("a\nb", "{}"), "a tool is called \"a\nb\", which a tool call cannot hold");
  EXPECT_EQ(error("f", R"({"$ref":"#/$defs/p","$defs":{"p":{"type":"object"}}})"), "");
  EXPECT_EQ(error("f", R"({})"), "");
}

// Real agents send such schemas. What can be expressed still holds.
TEST(ToolCalls, LeaveOutWhatTheyCannotExpress) {
  const auto accepts = [](std::string_view schema, std::string_view arguments, bool strict = false) -> Result<bool> {
    const Json json = *parse_json(schema);
    const GrammarTool tool{"f", &json, strict};
    CALLA_ASSIGN(const auto g, Grammar::tool_calls(vocabulary(), {&tool, 1}, false));
    std::vector<int32_t> ids = {*vocabulary()->tool_call};
    tokenizer().encode("\n<function=f>\n" + std::string(arguments) + "</function>\n", ids);
    ids.push_back(*vocabulary()->tool_call_end);
    GrammarMatcher m(g);
    return std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return m.accept(id); }) && m.can_end();
  };
  const auto a = [](std::string_view value) { return "<parameter=a>\n" + std::string(value) + "\n</parameter>\n"; };
  struct Case {
    std::string schema, good, bad;  // of `a`
  };
  const Case cases[] = {
      {R"({"type":"integer","not":{"const":1}})", "5", "x"},
      {R"({"type":"object","patternProperties":{"^x":{}},"additionalProperties":false})", R"({"x1": 1})", "5"},
      {R"({"type":"object","properties":{"b":{"type":"integer"}},"required":["b"],"minProperties":1})", R"({"b": 1})",
       "{}"},
      {R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})", "[1, 2]", R"(["x"])"},
      {R"({"type":"array","contains":{"const":1},"minItems":"two"})", R"(["x"])", "5"},
      {R"({"type":"integer","oneOf":[{"minimum":1},{"minimum":5}]})", "7", "0"},
      {R"({"type":"boolean","allOf":[{"$ref":"#/nowhere"}]})", "true", "5"},
      {R"({"type":"object","properties":{"b":{"type":"integer"}},"oneOf":[{"$ref":"#/nowhere"}]})",
       R"({"b": 1, "c": 2})", R"({"b": "x"})"},
      {R"({"$ref":"https://example.com/schema"})", "anything", ""},
      {R"({"type":"string","pattern":"^(?=a).*$"})", "b", ""},
  };
  for (const Case& c : cases) {
    const std::string schema = R"({"type":"object","properties":{"a":)" + c.schema + R"(},"required":["a"]})";
    EXPECT_FALSE(accepts(schema, a(c.good), true)) << schema << " is refused where it is strict";
    const auto good = accepts(schema, a(c.good));
    ASSERT_TRUE(good) << good.error().message;
    EXPECT_TRUE(*good) << schema;
    EXPECT_TRUE(c.bad.empty() || !*accepts(schema, a(c.bad))) << schema;
    EXPECT_FALSE(*accepts(schema, "")) << schema;
  }
  const auto either =
      R"({"type":"object","properties":{"a":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})";
  EXPECT_FALSE(accepts(either, a("1"), true));
  EXPECT_TRUE(*accepts(either, a("1")));
  EXPECT_FALSE(*accepts(either, a("x")));
  // Notes are no constraints, even where a tool is strict.
  const auto notes =
      R"({"$schema":"x","$comment":"y","properties":{"a":{"type":"integer","examples":[1],"default":2,"format":"int32","title":"t"}}})";
  EXPECT_TRUE(*accepts(notes, a("1"), true));
}

// Beside a schema of the answer, both are allowed, and nothing else.
TEST(ToolCalls, OrADocument) {
  const Json answer = *parse_json(
      R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false})");
  const GrammarTool tool{"ping", nullptr};
  const auto either = Grammar::tool_calls(vocabulary(), {&tool, 1}, true, &answer);
  ASSERT_TRUE(either) << either.error().message;
  const auto call = *vocabulary()->tool_call, call_end = *vocabulary()->tool_call_end;
  const auto accepts = [&](const std::vector<int32_t>& ids) {
    GrammarMatcher m(*either);
    return std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return m.accept(id); }) && m.can_end();
  };
  const auto ids = [&](std::string_view text) {
    std::vector<int32_t> out;
    tokenizer().encode(text, out);
    return out;
  };
  EXPECT_TRUE(accepts(ids(R"({"n": 5})")));
  EXPECT_FALSE(accepts(ids(R"({"m": 5})")));
  EXPECT_FALSE(accepts(ids("Five")));
  std::vector<int32_t> one = {call};
  for (const int32_t id : ids("\n<function=ping>\n</function>\n")) one.push_back(id);
  one.push_back(call_end);
  EXPECT_TRUE(accepts(one));
  std::vector<int32_t> both = ids(R"({"n": 5})");
  both.insert(both.end(), one.begin(), one.end());
  EXPECT_FALSE(accepts(both));
  const Json bad = {{"type", "wonder"}};
  EXPECT_FALSE(Grammar::tool_calls(vocabulary(), {&tool, 1}, true, &bad));
}

}  // namespace
}  // namespace calla::grammar_test
