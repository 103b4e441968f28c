#include "grammar/grammar.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/grammar/grammars.h"

namespace calla::grammar_test {
namespace {

struct Case {
  std::string_view schema;
  std::vector<std::string_view> accepted, refused;
};

TEST(Grammar, AcceptsWhatTheSchemaAllowsAndNothingElse) {
  const Case cases[] = {
      {R"({"type":"boolean"})", {"true", "false", "\n\ntrue"}, {"", "tru", "null", "truefalse", "true ", "\n\n\ntrue"}},
      {R"({"type":["string","null"]})",
       {R"("")", R"("a\n\u00e9\ud83d\ude00é")", "null"},
       {R"("a)", R"("\x")", "\"\n\"", R"("\ud83d")", "1"}},
      {R"({"type":"integer"})", {"0", "-1", "1234567890123456789"}, {"-0", "01", "1.0", "12345678901234567890", "1e3"}},
      {R"({"type":"number"})",
       {"0", "-0.5", "1e10", "1.25E-3", "12e289"},
       {".5", "1.", "01", "1e290", "--1", "1e", "+1"}},
      {R"({"type":"integer","minimum":-12,"maximum":105})",
       {"-12", "-9", "0", "7", "99", "100", "105"},
       {"-13", "-20", "106", "110", "-0", "1000"}},
      {R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":5})", {"4"}, {"3", "5", "44"}},
      {R"({"type":"number","minimum":-1.5,"exclusiveMaximum":2.25})",
       {"-1.5", "-1.50", "-1.49", "-0.001", "0", "0.0", "2.2499", "2.2"},
       {"-1.51", "-2", "2.25", "2.250", "2.3", "3", "-0.0", "1e0"}},
      {R"({"type":"integer","multipleOf":7,"minimum":10})", {"14", "21", "700"}, {"7", "15", "-14", "0"}},
      {R"({"type":"number","multipleOf":0.25})", {"0", "0.25", "-1.5", "3.75", "10"}, {"0.2", "0.3", "1.125"}},
      {R"({"enum":["a","ab",1,2.5,true,null,{"x":[1,"y"]},[]]})",
       {"\"a\"", "\"ab\"", "1", "2.5", "true", "null", R"({"x":[1,"y"]})", R"({"x": [1, "y"]})", "[]"},
       {"\"b\"", "2", "{}", "\"\""}},
      {R"({"const":"é\"\n"})", {R"("é\"\n")"}, {R"("e\"\n")"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("éöü")", R"("\n\u0041")", R"("😀\ud83d\ude00")"},
       {R"("a")", R"("abcd")", R"("")"}},
      {R"({"type":"string","pattern":"^[a-c]+[0-9]{2}$"})",
       {R"("a12")", R"("abccba00")"},
       {R"("12")", R"("a1")", R"("a123")", R"("d12")"}},
      {R"({"type":"string","pattern":"x\\n\"","maxLength":5})",
       {R"("x\n\"")", R"("ax\n\"b")"},
       {R"("x\n")", R"("aax\n\"b")"}},
      {R"({"type":"string","pattern":"^(a|b)*$","minLength":2})", {R"("ab")"}, {R"("a")", R"("abc")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2023-12-31")"},
       {R"("2023-02-29")", R"("2023-13-01")", R"("1900-02-29")", R"("2023-1-1")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-02-29T23:59:59Z")", R"("2024-01-01T00:00:00.123+02:00")"},
       {R"("2024-01-01 00:00:00Z")", R"("2024-01-01T24:00:00Z")", R"("2024-01-01T00:00:00")"}},
      {R"({"type":"string","format":"uuid"})",
       {R"("123e4567-e89b-12d3-a456-426614174000")"},
       {R"("123e4567e89b12d3a456426614174000")"}},
      {R"({"type":"string","format":"color"})", {R"("anything")"}, {}},
      {R"({"type":"array","items":{"type":"integer"}})",
       {"[]", "[1]", "[1,2, 3]", "[\n  1,\n  2\n]", "[ 1 ]", "[\n\t1\n]"},
       {"[1,]", "[,]", "[1 2]", "[\"a\"]", "[\n\n1]", "[  1]", "[1 ,2]"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
       {"[1,2]", "[1,2,3]"},
       {"[]", "[1]", "[1,2,3,4]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
       {"[]", "[1]", "[1,\"a\"]"},
       {"[\"a\"]", "[1,\"a\",2]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":1,"maxItems":3})",
       {"[1]", "[1,\"a\"]", "[1,\"a\",null]"},
       {"[]", "[1,\"a\",null,null]", "[1,null]"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"null"}},"required":["b"],"additionalProperties":false})",
       {R"({"b":"x"})", R"({"a": 1, "b": "x", "c": null})", "{\n  \"a\": 1,\n  \"b\": \"\"\n}"},
       {"{}", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":"x","b":"x"})", R"({"b":"x","d":1})", R"({"b":"x",})"}},
      {R"({"type":"object","properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
       {"{}", R"({"ab":1})", R"({"ab":1,"a":true,"abc":false,"":true})", R"({"x":true})"},
       {R"({"ab":true})", R"({"x":1})", R"({"x":true,"ab":1})", R"({"ab":1,"ab":true})"}},
      {R"({"type":"object","required":["k"]})", {R"({"k":[{}]})", R"({"k":1,"z":2})"}, {"{}", R"({"z":1})"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"$ref":"#"}}]})",
       {"1", "[]", "[1,[2,[]]]"},
       {"[\"a\"]", "null"}},
      {R"({"$ref":"#/$defs/a~1b%25","$defs":{"a/b%":{"type":"null"}}})", {"null"}, {"1"}},
      {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1})"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"}},"anyOf":[{"required":["a"]},{"properties":{"b":{"const":1}},"required":["b"]}]})",
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"},
       {"{}"}},
      {R"({"allOf":[{"type":["integer","string"]},{"type":["number","null"]}]})", {"1"}, {"1.5", "null", "\"\""}},
      {R"({"oneOf":[{"type":"object","properties":{"t":{"const":"a"}},"required":["t"]},{"type":"object","properties":{"t":{"const":"b"}},"required":["t"]}]})",
       {R"({"t":"a"})", R"({"t":"b"})"},
       {R"({"t":"c"})"}},
      {R"({"$ref":"#/$defs/a","minimum":1,"$defs":{"a":{"type":"integer"}}})", {"1"}, {"0", "1.5"}},
      {R"({})", {"1", "{\"a\":[null,{}]}", "\"x\""}, {"", "{]"}},
      {R"({"type":["integer","string"],"anyOf":[{"const":1},{"const":"a"},{"const":null}]})", {"1", "\"a\""}, {"null"}},
  };
  for (const Case& c : cases) {
    const auto g = grammar(c.schema);
    for (const auto text : c.accepted) EXPECT_TRUE(accepts(g, text)) << c.schema << " should accept " << text;
    for (const auto text : c.refused) EXPECT_FALSE(accepts(g, text)) << c.schema << " should refuse " << text;
  }
}

TEST(Grammar, NamesWhatItRefuses) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {R"({"type":"object","properties":{"a":{"not":{}}}})", "#/properties/a/not is not supported"},
      {R"({"type":"array","uniqueItems":true})", "#/uniqueItems is not supported"},
      {R"({"type":"text"})", "#/type must be the name of a type of JSON, or a list of some"},
      {R"({"properties":{"a/b~":{"minLength":-1}}})",
       "#/properties/a~1b~0/minLength must be a whole number, 0 or more"},
      {R"({"$ref":"#/$defs/x"})", "#/$ref names \"#/$defs/x\", which does not exist"},
      {R"({"$ref":"http://x/y"})", "#/$ref must begin with #: only references inside the schema are followed"},
      {R"({"$ref":"#"})", "# refers to itself without end"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "# refers to itself without end"},
      {R"({"type":"array","items":{"$ref":"#"},"minItems":1})", "no document of finite depth satisfies the schema"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "no document of finite depth satisfies the schema"},
      {R"-({"type":"string","pattern":"a(?=b)"})-", "#/pattern look-around is not supported: at byte 2"},
      {R"({"type":"string","pattern":"(a"})", "#/pattern a ( without its ) at byte 2"},
      {R"({"type":"string","pattern":"^.*a.{20}$"})", "#/pattern needs an automaton of more than 4096 states"},
      {R"({"enum":["a"],"minLength":1})", "#/minLength is not supported beside enum and const"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
       "#/oneOf is supported only where its parts exclude each other: 0 and 1 may not"},
      {R"({"type":"object","required":["x"],"additionalProperties":false})",
       "#/required names \"x\", which additionalProperties refuses"},
      {R"({"oneOf":[{"minLength":1},{"minimum":0}]})",
       "#/oneOf is supported only where its parts exclude each other: 0 and 1 may not"},
      {R"({"allOf":[{"items":{"type":"null"}},{"prefixItems":[{}]}]})",
       "#/allOf/0/items is not supported where schemas with prefixItems are combined"},
      {R"({"allOf":[{"$ref":"#/$defs/a","minimum":1},{"maximum":3}],"$defs":{"a":{"type":"integer"}}})",
       "#/allOf/0/$ref is not supported beside other keywords here"},
      {R"(3)", "# must be a schema: an object, true or false"},
  };
  for (const auto& [schema, message] : cases) {
    const auto g = compile(schema);
    ASSERT_FALSE(g) << schema;
    EXPECT_EQ(g.error().message, message) << schema;
  }
}

TEST(Grammar, JsonObjectIsAnyObject) {
  const auto g = Grammar::json_object(vocabulary());
  EXPECT_TRUE(accepts(g, R"({"a": [1, {"b": null}], "c": "d"})"));
  EXPECT_FALSE(accepts(g, "[1]"));
  // Nested as deep as parse_json reads it, and no deeper.
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(static_cast<size_t>(depth) - 1, '[') +
           std::string(static_cast<size_t>(depth) - 1, ']') + "}";
  };
  EXPECT_TRUE(accepts(g, nested(kMaxJsonDepth)));
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth)));
  EXPECT_FALSE(accepts(g, nested(kMaxJsonDepth + 1)));
}

TEST(Grammar, WritesToolCalls) {
  const Json get = Json::parse(R"({"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"},
    "opts":{"type":"array","items":{"type":"string"}},"mode":{"enum":["r","w"]}},"required":["path"]})");
  const std::vector<GrammarTool> tools{{"get", &get}, {"getall", nullptr}};
  const auto one = *Grammar::tool_calls(vocabulary(), tools, false);
  const auto many = *Grammar::tool_calls(vocabulary(), tools, true);
  const std::string all = "<tool_call>\n<function=getall>\n</function>\n</tool_call>";
  const std::string full =
      "<tool_call>\n<function=get>\n<parameter=path>\na \"b\" <x>\n\n</parameter\n</parameter>\n"
      "<parameter=lines>\n12\n</parameter>\n<parameter=opts>\n[\"a\", "
      "\"<b>\"]\n</parameter>\n<parameter=mode>\nr\n</parameter>\n</function>\n</tool_call>";
  for (const auto& g : {one, many}) {
    EXPECT_TRUE(accepts_tokens(g, all));
    EXPECT_TRUE(accepts_tokens(g, "\n\n" + full));
    EXPECT_FALSE(accepts_tokens(g, "<tool_call>\n<function=get>\n</function>\n</tool_call>")) << "path is required";
    EXPECT_FALSE(accepts_tokens(g, "<tool_call>\n<function=other>\n</function>\n</tool_call>"));
    EXPECT_FALSE(accepts_tokens(g, "text" + all));
    EXPECT_FALSE(accepts(g, all)) << "the markers are control tokens";
  }
  EXPECT_FALSE(accepts_tokens(one, all + "\n" + full));
  EXPECT_TRUE(accepts_tokens(many, all + "\n" + full + "\n" + all));
  EXPECT_FALSE(Grammar::tool_calls(vocabulary(), {}, false));
}

// The mask, found by tries, slices and caches, allows exactly the tokens that are accepted one by one.
TEST(Grammar, MasksAllowWhatIsAccepted) {
  const std::string_view schemas[] = {
      R"({})",
      R"({"type":"string","maxLength":6})",
      R"({"type":"object","properties":{"name":{"type":"string","minLength":3,"maxLength":40},"n":{"type":"number","minimum":0},"d":{"type":"string","format":"date"},"t":{"type":"array","items":{"enum":["red","green"]}}},"additionalProperties":{"type":"string","pattern":"^[a-z ]+$"}})",
  };
  std::vector<std::shared_ptr<const Grammar>> grammars;
  for (const auto schema : schemas) grammars.push_back(grammar(schema));
  const Json parameters = Json::parse(
      R"({"properties":{"text":{"type":"string"},"s":{"type":"string","maxLength":5},"j":{}},"required":["text"]})");
  const GrammarTool tool{"say", &parameters};
  grammars.push_back(*Grammar::tool_calls(vocabulary(), {&tool, 1}, true));
  Random random(7);
  std::vector<uint64_t> mask(vocabulary()->words());
  for (const auto& g : grammars) {
    for (int walk = 0; walk < 10; ++walk) {
      GrammarMatcher m(g);
      for (int step = 0; step < 40; ++step) {
        m.mask(mask);
        std::vector<int32_t> ids;
        for (int32_t id = 0; id < vocabulary()->size(); ++id) {
          GrammarMatcher copy = m;
          const bool accepted = copy.accept(id);
          ASSERT_EQ(accepted, allowed(mask, id))
              << "token " << id << " (" << tokenizer().bytes(id) << ") at step " << step;
          if (accepted && !vocabulary()->is_stop(id)) ids.push_back(id);
        }
        ASSERT_EQ(m.can_end(), allowed(mask, vocabulary()->stop_ids()[0]));
        if (ids.empty()) {
          ASSERT_TRUE(m.can_end());
          break;
        }
        ASSERT_TRUE(m.accept(ids[random.below(ids.size())]));
      }
    }
  }
}

// What was found out is thrown away when it is too much; matchers do not notice.
TEST(Grammar, MatchersOutliveWhatWasFoundOut) {
  const auto g = grammar(R"({"type":"string","maxLength":20000})");
  const std::vector<int32_t> letters{byte_token('a'), byte_token('\\'), byte_token('n')};
  GrammarMatcher early(g), late(g);
  ASSERT_TRUE(early.accept(byte_token('"')));
  ASSERT_TRUE(late.accept(byte_token('"')));
  // Each letter is a state of its own: several times as many as are kept.
  for (int i = 0; i < 10'000; ++i) {
    for (const int32_t id : letters) ASSERT_TRUE(late.accept(id));
  }
  EXPECT_FALSE(late.accept(letters[0])) << "the string is full";
  EXPECT_TRUE(GrammarMatcher(late).accept(byte_token('"')));
  std::vector<uint64_t> mask(vocabulary()->words()), fresh(mask);
  early.mask(mask);
  GrammarMatcher other(grammar(R"({"type":"string","maxLength":20000})"));
  ASSERT_TRUE(other.accept(byte_token('"')));
  other.mask(fresh);
  EXPECT_EQ(mask, fresh);
  EXPECT_TRUE(early.accept(byte_token('"')));
  EXPECT_TRUE(early.can_end());
}

// A mask that needs more states than are kept, and an ambiguous grammar of which only a part is followed: what is
// allowed is accepted all the same.
TEST(Grammar, HostileSchemasStayConsistent) {
  const auto patterns = [](int count, int lengths) {
    Json all = Json::array();
    for (int i = 0; i < count; ++i) {
      const auto letter = [i](int letters) { return static_cast<char>('a' + i % letters); };
      all.push_back(
          {{"type", "string"}, {"pattern", fmt::format("^.*{}.{{{}}}{}$", letter(7), i % lengths, letter(11))}});
    }
    return Json{{"anyOf", all}};
  };
  const auto array = Json{{"type", "array"}, {"items", {{"$ref", "#/$defs/n"}}}};
  const Json schemas[] = {
      patterns(250, 6),  // more states than are kept
      patterns(800, 5),  // more work than is done
      {{"$ref", "#/$defs/n"}, {"$defs", {{"n", {{"anyOf", {array, array, array, {{"type", "null"}}}}}}}}},
      {{"type", "string"}, {"minLength", 1'000'000'000}},
  };
  Random random(13);
  std::vector<uint64_t> mask(vocabulary()->words());
  for (const Json& schema : schemas) {
    const auto g = Grammar::json_schema(vocabulary(), schema);
    ASSERT_TRUE(g) << g.error().message;
    GrammarMatcher m(*g);
    for (const char c : {'[', '[', '[', '[', '[', '[', '[', '[', '[', '['}) m.accept(byte_token(c));
    for (int step = 0; step < 12; ++step) {
      m.mask(mask);
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < vocabulary()->size(); ++id) {
        if (!allowed(mask, id) || vocabulary()->is_stop(id)) continue;
        ids.push_back(id);
        ASSERT_TRUE(GrammarMatcher(m).accept(id)) << tokenizer().bytes(id);
      }
      if (ids.empty()) break;
      ASSERT_TRUE(m.accept(ids[random.below(ids.size())]));
    }
  }
}

TEST(Grammar, MatchersOfOneGrammarMayBeUsedInThreads) {
  const auto g = grammar(
      R"({"type":"array","items":{"type":"object","properties":{"a":{"type":"string","maxLength":9},"b":{}}}})");
  const auto walk = [&](uint64_t seed) {
    Random random(seed);
    GrammarMatcher m(g);
    std::vector<uint64_t> mask(vocabulary()->words());
    std::string text;
    for (int step = 0; step < 60; ++step) {
      m.mask(mask);
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < vocabulary()->size(); ++id) {
        if (allowed(mask, id) && !vocabulary()->is_stop(id)) ids.push_back(id);
      }
      if (ids.empty()) break;
      const int32_t id = ids[random.below(ids.size())];
      if (!m.accept(id)) return std::string("refused");
      text += tokenizer().bytes(id);
    }
    return text;
  };
  std::vector<std::string> together(8), alone;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < together.size(); ++i) threads.emplace_back([&, i] { together[i] = walk(i); });
  for (std::thread& t : threads) t.join();
  for (size_t i = 0; i < together.size(); ++i) alone.push_back(walk(i));
  EXPECT_EQ(together, alone);
}

}  // namespace
}  // namespace calla::grammar_test
