#include "api/openai_responses.h"

#include <gtest/gtest.h>

#include "tests/api/testing.h"

namespace calla {
namespace {

using namespace test;  // NOLINT

const std::string kTools = R"(,"tools":[{"type":"function","name":"read","strict":true,"parameters":{"type":"object",
  "properties":{"path":{"type":"string"},"lines":{"type":"integer"}}}},{"type":"web_search"},
  {"type":"namespace","name":"x","tools":[]},{"type":"custom","name":"apply_patch"}])";
const std::string kAnswer = "I look.\n</think>\n\nOne moment.\n\n" +
                            tagged_call("read", tagged_parameter("path", "a\"b") + tagged_parameter("lines", "5")) +
                            "\n" + tagged_call("read", "");

// A stream put together again, with its order and numbers checked. Returns the last response.
Json assemble(const std::vector<SseEvent>& events) {
  Json output = Json::array();
  Json last;
  int open = -1;
  for (size_t k = 0; k < events.size(); ++k) {
    const Json e = events[k].json();
    const std::string type = e["type"];
    EXPECT_EQ(type, events[k].name);
    EXPECT_EQ(e["sequence_number"], k);
    EXPECT_TRUE(last.is_null()) << "something after the end";
    if (k < 2) {
      EXPECT_EQ(type, k == 0 ? "response.created" : "response.in_progress");
      EXPECT_EQ(e["response"]["status"], "in_progress");
      continue;
    }
    if (type == "response.output_item.added") {
      EXPECT_EQ(open, -1);
      open = e["output_index"];
      EXPECT_EQ(open, static_cast<int>(output.size()));
      EXPECT_EQ(e["item"]["status"], "in_progress");
      output.push_back(e["item"]);
      continue;
    }
    if (type == "response.completed" || type == "response.incomplete") {
      EXPECT_EQ(open, -1);
      last = e["response"];
      continue;
    }
    EXPECT_EQ(e["output_index"], open) << type;
    if (open < 0) return {};
    Json& item = output[open];
    if (type == "response.output_item.done") {
      // What came piece by piece is what the finished item says.
      EXPECT_EQ(e["item"]["id"], item["id"]);
      const Json& done = e["item"];
      if (item["type"] == "function_call") {
        EXPECT_EQ(done["arguments"], item["arguments"]);
      }
      if (item["type"] == "message") {
        EXPECT_EQ(done["content"][0]["text"], item["content"][0]["text"]);
      }
      if (item["type"] == "reasoning") {
        EXPECT_EQ(done["content"][0]["text"], item.value("said", ""));
      }
      item = done;
      open = -1;
      continue;
    }
    EXPECT_EQ(e["item_id"], item["id"]) << type;
    const auto append = [&](Json& to) {
      to = (to.is_string() ? to.get<std::string>() : "") + e["delta"].get<std::string>();
    };
    if (type == "response.content_part.added") item["content"].push_back(e["part"]);
    if (type == "response.output_text.delta") append(item["content"][0]["text"]);
    if (type == "response.reasoning_text.delta") append(item["said"]);
    if (type == "response.function_call_arguments.delta") append(item["arguments"]);
    if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(e["arguments"], item["arguments"]);
    }
    if (type == "response.output_text.done") {
      EXPECT_EQ(e["text"], item["content"][0]["text"]);
    }
  }
  EXPECT_EQ(last["output"], output);
  return last;
}

Json without_ids(Json response) {
  for (const char* key : {"id", "created_at", "usage"}) response.erase(key);
  for (Json& item : response["output"]) {
    item.erase("id");
    item.erase("call_id");
  }
  return response;
}

TEST(OpenAiResponses, StreamAndWholeSayTheSame) {
  TestApi api(kAnswer);
  const std::string body = R"({"input":"Hi","temperature":0.0)" + kTools;
  const Json whole = api.ask(ApiKind::kResponses, body + "}").json();
  ASSERT_EQ(whole["output"].size(), 4u) << whole;
  EXPECT_EQ(whole["output"][0]["content"][0], (Json{{"type", "reasoning_text"}, {"text", "I look."}}));
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "One moment.");
  EXPECT_EQ(whole["output"][2]["arguments"], R"({"path": "a\"b", "lines": 5})");
  EXPECT_EQ(whole["output"][3]["arguments"], "{}");
  EXPECT_NE(whole["output"][2]["call_id"], whole["output"][3]["call_id"]);
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["tools"].size(), 4u);
  const Json stream = assemble(api.ask(ApiKind::kResponses, body + R"(,"stream":true})").events());
  EXPECT_EQ(without_ids(stream), without_ids(whole));
  EXPECT_GT(stream["usage"]["input_tokens_details"]["cached_tokens"].get<int>(), 0);
  EXPECT_EQ(stream["usage"]["output_tokens_details"]["reasoning_tokens"], 9);
  EXPECT_EQ(stream["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
}

TEST(OpenAiResponses, CutShort) {
  TestApi api("H\n</think>\n\nOne, two, three.");
  const std::string body = R"({"input":"Hi","max_output_tokens":10)";
  const Json whole = api.ask(ApiKind::kResponses, body + "}").json();
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(whole["output"].back()["status"], "incomplete");
  EXPECT_EQ(without_ids(assemble(api.ask(ApiKind::kResponses, body + R"(,"stream":true})").events())),
            without_ids(whole));
}

TEST(OpenAiResponses, Logprobs) {
  TestApi api("Yes.");
  const std::string body =
      R"({"input":"Hi","reasoning":{"effort":"none"},"top_logprobs":1,"include":["message.output_text.logprobs"])";
  const Json whole = api.ask(ApiKind::kResponses, body + "}").json();
  EXPECT_EQ(whole["output"][0]["content"][0]["logprobs"].size(), 4u);
  EXPECT_EQ(whole["output"][0]["content"][0]["logprobs"][0]["token"], "Y");
  EXPECT_EQ(without_ids(assemble(api.ask(ApiKind::kResponses, body + R"(,"stream":true})").events())),
            without_ids(whole));
}

// Codex on its second turn.
TEST(OpenAiResponses, AgentsConversation) {
  const auto request =
      parse_responses(R"({"model":"m","stream":true,"store":false,"tool_choice":"auto","parallel_tool_calls":true,
    "reasoning":{"effort":"medium","summary":"auto"},"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","client_metadata":{},
    "input":[
      {"type":"message","role":"developer","content":[{"type":"input_text","text":"Rules."}]},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"<environment>"}]},
      {"role":"user","content":"Read a.txt"},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"I read."}],"encrypted_content":null},
      {"type":"function_call","id":"fc_1","call_id":"call_1","name":"read","arguments":"{\"path\":\"a.txt\"}","status":"completed"},
      {"type":"function_call","id":"fc_2","call_id":"call_2","name":"read","arguments":"{}"},
      {"type":"function_call_output","call_id":"call_1","output":"hello"},
      {"type":"function_call_output","call_id":"call_2","output":[{"type":"input_text","text":"no "},{"type":"output_text","text":"path"},{"type":"input_image","image_url":"data:"}]},
      {"type":"web_search_call","id":"ws","status":"completed"},
      {"type":"reasoning","summary":[{"type":"summary_text","text":"In short."}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"It says hello.","annotations":[]}]},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"Thanks"}]}])" +
                          kTools + "}",
                      {});
  ASSERT_TRUE(request) << request.error().message;
  const Conversation& c = request->conversation;
  ASSERT_EQ(c.messages.size(), 8u);
  EXPECT_EQ(c.messages[0].role, ChatRole::kSystem);
  EXPECT_EQ(c.messages[3].role, ChatRole::kAssistant);
  EXPECT_EQ(c.messages[3].reasoning, "I read.");
  ASSERT_EQ(c.messages[3].tool_calls.size(), 2u);
  EXPECT_EQ(c.messages[3].tool_calls[0].arguments[0].value, "a.txt");
  EXPECT_EQ(c.messages[4].role, ChatRole::kTool);
  EXPECT_EQ(c.messages[5].content.size(), 3u);
  EXPECT_EQ(c.messages[6].reasoning, "In short.");
  EXPECT_EQ(c.messages[6].content[0].text, "It says hello.");
  EXPECT_EQ(c.tools.size(), 1u);
  EXPECT_EQ(request->thinking_budget, 8192);
}

TEST(OpenAiResponses, Refusals) {
  TestApi api("Yes.");
  for (const auto& [body, param] : std::vector<std::pair<std::string, std::string>>{
           {R"({})", ""},
           {R"({"input":5})", "input"},
           {R"({"input":[]})", "input"},
           {R"({"input":[5]})", "input[0]"},
           {R"({"input":[{"x":1}]})", "input[0].type"},
           {R"({"input":[{"type":"item_reference","id":"x"}]})", "input[0]"},
           {R"({"input":[{"role":"king","content":"x"}]})", "input[0].role"},
           {R"({"input":[{"role":"user","content":[{"type":"input_text","text":5}]}]})", "input[0].content[0].text"},
           {R"({"input":[{"role":"user","content":[{"type":"input_file","file_id":"x"}]}]})", "input[0].content[0]"},
           {R"({"input":[{"type":"function_call","arguments":"{}"}]})", "input[0].name"},
           {R"({"input":"x","previous_response_id":"resp_1"})", "previous_response_id"},
           {R"({"input":"x","conversation":"c"})", "conversation"},
           {R"({"input":"x","background":true})", "background"},
           {R"({"input":"x","instructions":[]})", "instructions"},
           {R"({"input":"x","max_output_tokens":0})", "max_output_tokens"},
           {R"({"input":"x","reasoning":"high"})", "reasoning"},
           {R"({"input":"x","reasoning":{"effort":"vast"}})", "reasoning.effort"},
           {R"({"input":"x","text":{"format":{"type":"json_schema","name":"a"}}})", "text.format.schema"},
           {R"({"input":"x","tools":[{"type":"function"}]})", "tools[0].name"},
           {R"({"input":"x","tool_choice":{"type":"web_search"}})", "tool_choice"},
           {R"({"input":"x","include":5})", "include"}}) {
    const Answered a = api.ask(ApiKind::kResponses, body);
    EXPECT_EQ(a.status, 400) << body;
    const Json param_json = a.json()["error"]["param"];
    EXPECT_EQ(param_json.is_null() ? "" : param_json.get<std::string>(), param) << a.bytes;
  }
}

}  // namespace
}  // namespace calla
