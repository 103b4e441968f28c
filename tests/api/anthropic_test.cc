#include "api/anthropic.h"

#include <gtest/gtest.h>

#include "tests/api/testing.h"

namespace calla {
namespace {

using namespace test;  // NOLINT

const std::string kHi = R"("max_tokens":500,"messages":[{"role":"user","content":"Hi"}])";
const std::string kThinking = R"(,"thinking":{"type":"adaptive"})";
const std::string kTools = R"(,"tools":[{"name":"read","description":"Reads.","input_schema":{"type":"object",
  "properties":{"path":{"type":"string"},"lines":{"type":"integer"}}}},{"type":"web_search_20250305","name":"web_search"}])";
const std::string kAnswer = "I look.\n</think>\n\nOne moment.\n\n" +
                            tagged_call("read", tagged_parameter("path", "a\"b") + tagged_parameter("lines", "5")) +
                            "\n" + tagged_call("read", "");

// A stream put together again, with its order checked.
Json assemble(const std::vector<SseEvent>& events) {
  Json message;
  std::string partial;
  int open = -1;
  bool stopped = false;
  for (size_t k = 0; k < events.size(); ++k) {
    const Json e = events[k].json();
    EXPECT_EQ(e["type"], events[k].name);
    EXPECT_FALSE(stopped) << "something after message_stop";
    if (e["type"] == "message_start") {
      EXPECT_EQ(k, 0u);
      message = e["message"];
      EXPECT_TRUE(message["content"].empty());
    } else if (e["type"] == "content_block_start") {
      EXPECT_EQ(open, -1) << "a block inside a block";
      open = e["index"];
      EXPECT_EQ(open, static_cast<int>(message["content"].size()));
      message["content"].push_back(e["content_block"]);
      partial.clear();
    } else if (e["type"] == "content_block_delta") {
      EXPECT_EQ(e["index"], open);
      const Json& delta = e["delta"];
      Json& block = message["content"][open];
      const auto append = [&](const char* key) {
        block[key] = block[key].get<std::string>() + delta[key].get<std::string>();
      };
      if (delta["type"] == "text_delta") append("text");
      if (delta["type"] == "thinking_delta") append("thinking");
      if (delta["type"] == "signature_delta") append("signature");
      if (delta["type"] == "input_json_delta") partial += delta["partial_json"];
    } else if (e["type"] == "content_block_stop") {
      EXPECT_EQ(e["index"], open);
      Json& block = message["content"][open];
      if (block["type"] == "tool_use") block["input"] = *parse_json(partial);
      if (block["type"] == "thinking") {
        EXPECT_NE(block["signature"], "");
      }
      open = -1;
    } else if (e["type"] == "message_delta") {
      EXPECT_EQ(open, -1);
      message.update(e["delta"]);
      message["usage"] = e["usage"];
    } else if (e["type"] == "message_stop") {
      stopped = true;
    } else {
      EXPECT_EQ(e["type"], "ping");
    }
  }
  EXPECT_TRUE(stopped);
  return message;
}

Json without_ids(Json message) {
  message.erase("id");
  message.erase("usage");
  for (Json& block : message["content"]) block.erase("id");
  return message;
}

TEST(Anthropic, StreamAndWholeSayTheSame) {
  TestApi api(kAnswer);
  const Json whole = api.ask(ApiKind::kMessages, "{" + kHi + kThinking + kTools + "}").json();
  ASSERT_EQ(whole["content"].size(), 4u) << whole;
  EXPECT_EQ(whole["content"][0]["type"], "thinking");
  EXPECT_EQ(whole["content"][0]["thinking"], "I look.");
  EXPECT_EQ(whole["content"][1], (Json{{"type", "text"}, {"text", "One moment."}}));
  EXPECT_EQ(whole["content"][2]["input"], (Json{{"path", "a\"b"}, {"lines", 5}}));
  EXPECT_TRUE(whole["content"][2]["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_EQ(whole["content"][3]["input"], Json::object());
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(whole["type"], "message");
  const Json stream =
      assemble(api.ask(ApiKind::kMessages, "{" + kHi + kThinking + kTools + R"(,"stream":true})").events());
  EXPECT_EQ(without_ids(stream), without_ids(whole));
  EXPECT_GT(stream["usage"]["cache_read_input_tokens"].get<int>(), 0);
  const auto input = [](const Json& usage) {
    return usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>();
  };
  EXPECT_EQ(input(stream["usage"]), input(whole["usage"]));
  EXPECT_EQ(stream["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
  const auto counted = api.api().count_tokens("{" + kHi + kThinking + kTools + "}");
  ASSERT_TRUE(counted);
  EXPECT_EQ((*parse_json(*counted))["input_tokens"], input(whole["usage"]));
}

TEST(Anthropic, HiddenThinking) {
  TestApi api("Secret.\n</think>\n\nYes.");
  const std::string body = "{" + kHi + R"(,"thinking":{"type":"adaptive","display":"omitted"})";
  const Answered stream = api.ask(ApiKind::kMessages, body + R"(,"stream":true})");
  EXPECT_EQ(stream.bytes.find("Secret"), std::string::npos);
  const Json whole = api.ask(ApiKind::kMessages, body + "}").json();
  EXPECT_EQ(without_ids(assemble(stream.events())), without_ids(whole));
  EXPECT_EQ(whole["content"][0]["thinking"], "");
  EXPECT_EQ(whole["content"][1]["text"], "Yes.");
}

TEST(Anthropic, Stops) {
  TestApi api("One, two, three.");
  Json a = api.ask(ApiKind::kMessages, R"({"max_tokens":5,"messages":[{"role":"user","content":"Hi"}]})").json();
  EXPECT_EQ(a["stop_reason"], "max_tokens");
  EXPECT_EQ(a["content"][0]["text"], "One, ");
  a = api.ask(ApiKind::kMessages, "{" + kHi + R"(,"stop_sequences":["two"]})").json();
  EXPECT_EQ(a["stop_reason"], "stop_sequence");
  EXPECT_EQ(a["stop_sequence"], "two");
  a = api.ask(ApiKind::kMessages, "{" + kHi + "}").json();
  EXPECT_EQ(a["stop_reason"], "end_turn");
  EXPECT_TRUE(a["stop_sequence"].is_null());
}

// The request of an agent on its second turn, in Claude Code's shape.
TEST(Anthropic, AgentsConversation) {
  const auto request = parse_messages(R"({"model":"m","max_tokens":32000,"stream":true,
    "system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1; cch=77;"},
              {"type":"text","text":"You are an agent.","cache_control":{"type":"ephemeral"}},{"type":"text","text":" Be brief."}],
    "messages":[
      {"role":"user","content":[{"type":"text","text":"<reminder>"},{"type":"text","text":"Read a.txt","cache_control":{"type":"ephemeral"}}]},
      {"role":"system","content":[{"type":"text","text":"Tokens left: 5"}]},
      {"role":"assistant","content":[{"type":"thinking","thinking":"I read.","signature":"s"},{"type":"text","text":"Reading."},
        {"type":"tool_use","id":"toolu_1","name":"read","input":{"path":"a.txt","lines":5}},
        {"type":"tool_use","id":"toolu_2","name":"read","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"hello","cache_control":{"type":"ephemeral"}},
        {"type":"tool_result","tool_use_id":"toolu_2","is_error":true,"content":[{"type":"text","text":"no path"},{"type":"image","source":{}}]},
        {"type":"text","text":"Go on."}]}],
    "tools":[{"name":"read","description":"Reads.","input_schema":{"type":"object"},"defer_loading":true},
             {"type":"custom","name":"write","input_schema":{"type":"object"}},{"type":"bash_20250124","name":"bash"}],
    "thinking":{"type":"adaptive","display":"omitted"},"context_management":{"edits":[]},"output_config":{"effort":"medium"},
    "metadata":{"user_id":"u"},"temperature":1})",
                                      {});
  ASSERT_TRUE(request) << request.error().message;
  const Conversation& c = request->conversation;
  ASSERT_EQ(c.messages.size(), 7u);
  const auto text = [&](size_t i) {
    std::string all;
    for (const ChatPart& p : c.messages[i].content) all += p.text;
    return all;
  };
  EXPECT_EQ(text(0), "You are an agent. Be brief.");
  EXPECT_EQ(text(1), "<reminder>Read a.txt");
  EXPECT_EQ(c.messages[2].role, ChatRole::kSystem);
  EXPECT_EQ(c.messages[3].reasoning, "I read.");
  ASSERT_EQ(c.messages[3].tool_calls.size(), 2u);
  EXPECT_EQ(c.messages[3].tool_calls[0].arguments[1].value, "5");
  EXPECT_EQ(c.messages[4].role, ChatRole::kTool);
  EXPECT_EQ(text(4), "hello");
  EXPECT_TRUE(text(5).starts_with("Error: no path["));
  EXPECT_EQ(c.messages[6].role, ChatRole::kUser);
  EXPECT_EQ(c.tools.size(), 2u);
  EXPECT_EQ(
      c.tools[0],
      R"({"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object"}}})");
  EXPECT_EQ(c.thinking, true);
  EXPECT_TRUE(request->hide_thinking);
  EXPECT_EQ(request->thinking_budget, 8192);
  EXPECT_EQ(request->options.max_tokens, 32000);
}

// A result that is an error says so, once.
TEST(Anthropic, ErrorsOfToolsAreSeen) {
  const auto result = [](const std::string& members) {
    return parse_messages(R"({"messages":[{"role":"user","content":"Go."},
      {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"read","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t",)" +
                              members + "}]}]}",
                          {});
  };
  const auto text = [&](const std::string& members) {
    const auto request = result(members);
    EXPECT_TRUE(request) << members;
    std::string all;
    for (const ChatPart& p : request->conversation.messages.at(2).content) all += p.text;
    return all;
  };
  EXPECT_EQ(text(R"("is_error":true,"content":"no path")"), "Error: no path");
  EXPECT_EQ(text(R"("is_error":true)"), "Error: ");
  EXPECT_EQ(text(R"("is_error":true,"content":[{"type":"text","text":"Exit code 1\nTypeError"}])"),
            "Error: Exit code 1\nTypeError");
  for (const char* says : {"<tool_use_error>no path</tool_use_error>", "ERROR 5", "TypeError: x"}) {
    EXPECT_EQ(text(R"("is_error":true,"content":")" + std::string(says) + "\""), says);
  }
  for (const char* no : {R"("is_error":false,"content":"fine")", R"("is_error":null,"content":"fine")"}) {
    EXPECT_EQ(text(no), "fine");
  }
  const auto wrong = result(R"("is_error":"yes","content":"x")");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().status, 400);
  EXPECT_NE(wrong.error().message.find("messages[2].content[0].is_error"), std::string::npos) << wrong.error().message;
}

// The same text as a string and as blocks is the same prompt.
TEST(Anthropic, ShapesOfTextMakeNoDifference) {
  TestApi api("x");
  const auto count = [&](const std::string& content) {
    const auto counted = api.api().count_tokens(R"({"messages":[{"role":"user","content":)" + content + "}]}");
    EXPECT_TRUE(counted) << content;
    return counted.value_or("");
  };
  EXPECT_EQ(count(R"("one two")"), count(R"([{"type":"text","text":"one "},{"type":"text","text":"two"}])"));
  EXPECT_EQ(count(R"("one two")"), count(R"([{"type":"document","source":{"type":"text","data":"one two"}}])"));
}

TEST(Anthropic, ToolChoice) {
  const std::string tools = "{" + kHi + kTools + R"(,"tool_choice":)";
  EXPECT_EQ(parse_messages(tools + R"({"type":"any"}})", {})->tool_choice, ToolChoice::kRequired);
  const auto named = parse_messages(tools + R"({"type":"tool","name":"read","disable_parallel_tool_use":true}})", {});
  EXPECT_EQ(named->tool, "read");
  EXPECT_FALSE(named->parallel_tool_calls);
  EXPECT_TRUE(parse_messages(tools + R"({"type":"none"}})", {})->conversation.tools.empty());
}

TEST(Anthropic, Refusals) {
  TestApi api("Yes.");
  for (const auto& [body, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"messages":5})", "messages must be an array"},
           {R"({"messages":[]})", "messages must hold"},
           {R"({"messages":[{"role":"tool","content":"x"}]})", "messages[0].role"},
           {R"({"messages":[{"role":"user","content":5}]})", "messages[0].content must be"},
           {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text"},
           {R"({"messages":[{"role":"user","content":[{"type":"video"}]}]})", "\"video\""},
           {R"({"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]})", "images"},
           {R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"}]})", "end with the user"},
           {"{" + kHi + R"(,"system":7})", "system must be"},
           {"{" + kHi + R"(,"tools":[{"name":"x"}]})", "tools[0].input_schema"},
           {"{" + kHi + R"(,"tool_choice":"any"})", "tool_choice must be an object"},
           {"{" + kHi + R"(,"tool_choice":{"type":"any"}})", "no tools"},
           {"{" + kHi + R"(,"thinking":{"type":"deep"}})", "thinking.type"},
           {"{" + kHi + R"(,"thinking":{"type":"enabled","budget_tokens":"9"}})", "thinking.budget_tokens"},
           {"{" + kHi + R"(,"stop_sequences":[""]})", "stop_sequences"},
           {"{" + kHi + R"(,"output_config":{"format":{"type":"yaml"}}})", "output_config.format.type"},
           {"{" + kHi + R"(,"max_tokens":"9"})", "max_tokens"},
           {"{", "not valid JSON"}}) {
    const Answered a = api.ask(ApiKind::kMessages, body);
    EXPECT_EQ(a.status, 400) << body;
    const Json json = a.json();
    EXPECT_EQ(json["type"], "error");
    EXPECT_EQ(json["error"]["type"], "invalid_request_error");
    EXPECT_NE(json["error"]["message"].get<std::string>().find(message), std::string::npos) << a.bytes;
  }
}

}  // namespace
}  // namespace calla
