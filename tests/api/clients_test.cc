// Requests in the shapes of the agents that people use, with what each is known to send beside the plain fields.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api/openai_chat.h"
#include "tests/api/testing.h"

namespace calla {
namespace {

using namespace test;  // NOLINT

const std::string kCall = "I look.\n</think>\n\nOne moment.\n\n" + tagged_call("read", tagged_parameter("path", "a"));

struct Client {
  const char* name;
  const char* request;                                                     // its first turn
  bool reasoning_content = true, reasoning = false, result_parts = false;  // how it sends the turn back
};

const Client kClients[] = {
    {"pi",
     R"({"model":"m","stream":true,"stream_options":{"include_usage":true},"store":false,"max_completion_tokens":16384,
        "reasoning_effort":"medium","messages":[{"role":"developer","content":"You are an agent."},
        {"role":"user","content":[{"type":"text","text":"Read a."}]}],
        "tools":[{"type":"function","function":{"name":"read","description":"Reads.","parameters":{"type":"object","properties":{"path":{"type":"string"}}},"strict":false}}]})"},
    {"opencode",
     R"({"model":"m","max_tokens":8192,"tool_choice":"auto","stream":true,"stream_options":{"include_usage":true},
        "messages":[{"role":"system","content":"You are an agent."},{"role":"user","content":"Read a."}],
        "tools":[{"type":"function","function":{"name":"read","parameters":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"path":{"type":"string"}},"required":["path"],"additionalProperties":false}}}]})"},
    {"qwen-code", R"({"model":"m","max_tokens":64000,"stream":true,"stream_options":{"include_usage":true},
        "messages":[{"role":"system","content":"You are an agent."},{"role":"user","content":[{"type":"text","text":"One."},{"type":"text","text":"Two."},{"type":"text","text":"Three."},{"type":"text","text":"Four."},{"type":"text","text":"Read a."}]}],
        "tools":[{"type":"function","function":{"name":"read","parameters":{"properties":{"path":{"type":"string"}},"type":"object"}}}]})",
     true, true, true},
    {"cline", R"({"model":"m","tool_choice":"auto","stream":true,"stream_options":{"include_usage":true},
        "messages":[{"role":"system","content":"You are an agent."},{"role":"user","content":"Read a."}],
        "tools":[{"type":"function","function":{"name":"read","parameters":{"type":"object","properties":{"path":{"type":"string"},
          "edits":{"type":"array","items":{"type":"object","properties":{"old":{"anyOf":[{"type":"string"},{"type":"null"}]},
          "at":{"type":"integer","exclusiveMinimum":0,"maximum":9007199254740991}}}}}}}}]})"},
    {"continue", R"({"model":"m","stream":true,"stream_options":{"include_usage":true},
        "messages":[{"role":"system","content":"You are an agent."},{"role":"user","content":"Read a."}],
        "tools":[{"type":"function","function":{"name":"read","parameters":{"type":"object","properties":{"path":{"type":"string"}}}}}]})",
     false},
    {"langchain",
     R"({"model":"m","stream":true,"stream_options":{"include_usage":true},"n":1,"temperature":0,"frequency_penalty":0,
        "messages":[{"role":"user","content":"Read a."}],"tools":[{"type":"function","function":{"name":"read","parameters":{"type":"object","properties":{"path":{"type":"string"}}}}}],
        "chat_template_kwargs":{"enable_thinking":true},"logit_bias":null,"stop":null,"functions":null})"},
};

Json usage_of(const std::vector<SseEvent>& events) {
  EXPECT_GE(events.size(), 3u);
  return events.size() < 3 ? Json() : events[events.size() - 2].json()["usage"];
}

TEST(Clients, TheSecondTurnReusesTheFirst) {
  for (const Client& client : kClients) {
    TestApi api(kCall);
    Json request = *parse_json(client.request);
    const Answered first = api.ask(ApiKind::kChat, python_json(request));
    ASSERT_EQ(first.status, 200) << client.name << first.bytes;
    const Json used = usage_of(first.events());
    std::string id;
    for (const SseEvent& e : first.events()) {
      if (e.data == "[DONE]" || e.json()["choices"].empty()) continue;
      const Json delta = e.json()["choices"][0]["delta"];
      if (delta.contains("tool_calls") && delta["tool_calls"][0].contains("id")) id = delta["tool_calls"][0]["id"];
    }
    EXPECT_TRUE(id.starts_with("call_")) << client.name;
    Json turn = {
        {"role", "assistant"},
        {"content", "One moment."},
        {"tool_calls",
         {{{"id", id}, {"type", "function"}, {"function", {{"name", "read"}, {"arguments", "{\"path\":\"a\"}"}}}}}}};
    if (client.reasoning_content) turn["reasoning_content"] = "I look.";
    if (client.reasoning) turn["reasoning"] = "I look.";
    request["messages"].push_back(turn);
    Json result = "ok";
    if (client.result_parts) result = Json::array({{{"type", "text"}, {"text", "ok"}}});
    request["messages"].push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", result}});
    const Answered second = api.ask(ApiKind::kChat, python_json(request));
    ASSERT_EQ(second.status, 200) << client.name << second.bytes;
    EXPECT_GE(usage_of(second.events())["prompt_tokens_details"]["cached_tokens"].get<int>(),
              used["total_tokens"].get<int>() - 1)
        << client.name;
  }
}

// A title while the turn runs: two messages of the user in a row, no tools.
TEST(Clients, ATitleBesideTheTurn) {
  TestApi api(kCall);
  const Json main = *parse_json(kClients[1].request);
  EXPECT_EQ(api.ask(ApiKind::kChat, python_json(main)).status, 200);
  const Answered title = api.ask(ApiKind::kChat, R"({"model":"m","max_tokens":100,"stream":true,"messages":[
      {"role":"system","content":"You name conversations."},{"role":"user","content":"A title for this:"},{"role":"user","content":"Read a."}]})");
  EXPECT_EQ(title.status, 200);
  EXPECT_EQ(title.bytes.find("tool_calls"), std::string::npos) << "calls where there are no tools";
}

}  // namespace
}  // namespace calla
