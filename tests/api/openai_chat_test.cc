#include "api/openai_chat.h"

#include <gtest/gtest.h>

#include "tests/api/testing.h"

namespace calla {
namespace {

using namespace test;  // NOLINT

const std::string kTools = R"("tools":[{"type":"function","function":{"name":"read","parameters":{"type":"object",
  "properties":{"path":{"type":"string"},"lines":{"type":"integer"}}}}},{"type":"function","function":{"name":"now"}}])";
const std::string kHi = R"("messages":[{"role":"user","content":"Hi"}])";
const std::string kTwoCalls = "I look.\n</think>\n\nOne moment.\n\n" +
                              tagged_call("read", tagged_parameter("path", "a\"b") + tagged_parameter("lines", "5")) +
                              "\n" + tagged_call("now", "");

// A stream put together again as clients do it, with the rules that they depend on checked.
Json assemble(const std::vector<SseEvent>& events, int n = 1, bool usage = false) {
  Json choices = Json::array();
  for (int i = 0; i < n; ++i) choices.push_back({{"message", Json::object()}, {"finish_reason", nullptr}});
  Json last_usage;
  EXPECT_GE(events.size(), 2u);
  EXPECT_EQ(events.back().data, "[DONE]");
  std::string id;
  for (size_t k = 0; k + 1 < events.size(); ++k) {
    EXPECT_EQ(events[k].name, "");
    const Json chunk = events[k].json();
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    if (id.empty()) id = chunk["id"];
    EXPECT_EQ(chunk["id"], id);
    if (chunk["choices"].empty()) {
      EXPECT_EQ(k + 2, events.size()) << "usage comes last";
      EXPECT_TRUE(usage);
      last_usage = chunk["usage"];
      continue;
    }
    EXPECT_EQ(chunk["choices"].size(), 1u);
    const Json& choice = chunk["choices"][0];
    Json& whole = choices[choice["index"].get<int>()];
    EXPECT_TRUE(whole["finish_reason"].is_null()) << "something after the finish_reason";
    const Json& delta = choice["delta"];
    EXPECT_EQ(delta.contains("role"), !whole["message"].contains("role")) << "role exactly once";
    if (delta.contains("role")) whole["message"]["role"] = delta["role"];
    for (const char* key : {"content", "reasoning_content"}) {
      if (!delta.contains(key)) continue;
      whole["message"][key] = whole["message"].value(key, "") + delta[key].get<std::string>();
    }
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      Json& calls = whole["message"]["tool_calls"];
      const size_t index = call.at("index").get<size_t>();
      const bool first = index == calls.size();
      EXPECT_LE(index, calls.size());
      EXPECT_EQ(call.contains("id"), first) << "id only in the first";
      EXPECT_EQ(call.contains("type"), first);
      EXPECT_EQ(call["function"].contains("name"), first);
      if (first) {
        Json begun = call;
        begun.erase("index");
        calls.push_back(begun);
      } else {
        calls[index]["function"]["arguments"] =
            calls[index]["function"]["arguments"].get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    }
    whole["finish_reason"] = choice["finish_reason"];
  }
  EXPECT_EQ(last_usage.is_null(), !usage);
  return {{"choices", choices}, {"usage", last_usage}};
}

void expect_two_calls(const Json& choice) {
  const Json& message = choice["message"];
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["content"], "One moment.");
  EXPECT_EQ(message["reasoning_content"], "I look.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "read");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"path": "a\"b", "lines": 5})");
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "{}");
  EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
}

TEST(OpenAiChat, StreamAndWholeSayTheSame) {
  TestApi api(kTwoCalls);
  const Answered whole = api.ask(ApiKind::kChat, "{" + kHi + "," + kTools + "}");
  EXPECT_EQ(whole.status, 200);
  const Json body = whole.json();
  expect_two_calls(body["choices"][0]);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "test-model");
  const Answered stream =
      api.ask(ApiKind::kChat,
              "{" + kHi + "," + kTools + R"(,"stream":true,"model":"mine","stream_options":{"include_usage":true}})");
  const Json streamed = assemble(stream.events(), 1, true);
  expect_two_calls(streamed["choices"][0]);
  EXPECT_EQ(stream.events()[0].json()["model"], "mine");
  const Json& usage = streamed["usage"];
  EXPECT_EQ(usage["completion_tokens"], body["usage"]["completion_tokens"]);
  EXPECT_EQ(usage["prompt_tokens"], body["usage"]["prompt_tokens"]);
  // The second request finds the first's prompt.
  EXPECT_GT(usage["prompt_tokens_details"]["cached_tokens"].get<int>(), 0);
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 9);  // eight letters and the marker
}

TEST(OpenAiChat, ToolChoice) {
  TestApi api(kTwoCalls);
  // none: the model sees no tools, and nothing is read as a call.
  const Json none = api.ask(ApiKind::kChat, "{" + kHi + "," + kTools + R"(,"tool_choice":"none"})").json();
  EXPECT_FALSE(none["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(none["choices"][0]["finish_reason"], "stop");
  const Json bare = api.ask(ApiKind::kChat, "{" + kHi + "}").json();
  EXPECT_EQ(none["usage"]["prompt_tokens"], bare["usage"]["prompt_tokens"]);
  // Not in parallel: the answer ends with its first call.
  for (const char* stream : {"true", "false"}) {
    const Answered a =
        api.ask(ApiKind::kChat, "{" + kHi + "," + kTools + R"(,"parallel_tool_calls":false,"stream":)" + stream + "}");
    const Json choice = *stream == 't' ? assemble(a.events())["choices"][0] : a.json()["choices"][0];
    EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
  }
}

TEST(OpenAiChat, Choices) {
  TestApi api("Hm.\n</think>\n\nYes.");
  const Json whole = api.ask(ApiKind::kChat, "{" + kHi + R"(,"n":3})").json();
  ASSERT_EQ(whole["choices"].size(), 3u);
  const Json one = api.ask(ApiKind::kChat, "{" + kHi + "}").json();
  EXPECT_EQ(whole["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
  EXPECT_EQ(whole["usage"]["completion_tokens"].get<int>(), 3 * one["usage"]["completion_tokens"].get<int>());
  const Json stream = assemble(api.ask(ApiKind::kChat, "{" + kHi + R"(,"n":3,"stream":true})").events(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(whole["choices"][i]["index"], i);
    for (const Json& choice : {whole["choices"][i], stream["choices"][i]}) {
      EXPECT_EQ(choice["message"]["content"], "Yes.");
      EXPECT_EQ(choice["finish_reason"], "stop");
    }
  }
}

TEST(OpenAiChat, Limits) {
  TestApi api("Hm.\n</think>\n\nOne, two, three.");
  Json choice = api.ask(ApiKind::kChat, "{" + kHi + R"(,"max_completion_tokens":14})").json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  choice = api.ask(ApiKind::kChat, "{" + kHi + R"(,"stop":[", th"]})").json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["content"], "One, two");
}

TEST(OpenAiChat, Thinking) {
  TestApi api(fake::replies([](const std::string&) { return std::string("Plain."); }));
  const auto reasoning = [&](const std::string& more) {
    return api.ask(ApiKind::kChat, "{" + kHi + more + "}")
        .json()["choices"][0]["message"]
        .value("reasoning_content", "");
  };
  EXPECT_EQ(reasoning(""), "Plain.");  // it never says that it has ended
  EXPECT_EQ(reasoning(R"(,"reasoning_effort":"none")"), "");
  EXPECT_EQ(reasoning(R"(,"chat_template_kwargs":{"enable_thinking":false})"), "");
  EXPECT_EQ(reasoning(R"(,"enable_thinking":false)"), "");
  EXPECT_EQ(reasoning(R"(,"thinking_budget":3)"), "Pla");
  EXPECT_EQ(reasoning(R"(,"chat_template_kwargs":{"thinking_budget":2})"), "Pl");
  const ApiDefaults off{{}, false};
  EXPECT_EQ(parse_chat("{" + kHi + "}", off)->conversation.thinking, false);
  EXPECT_EQ(parse_chat("{" + kHi + R"(,"reasoning_effort":"low"})", off)->conversation.thinking, true);
  EXPECT_EQ(parse_chat("{" + kHi + R"(,"reasoning_effort":"low"})", off)->thinking_budget, 2048);
}

TEST(OpenAiChat, Logprobs) {
  TestApi api("H\n</think>\n\nYes.");
  const std::string body = "{" + kHi + R"(,"logprobs":true,"top_logprobs":2)";
  const Json whole = api.ask(ApiKind::kChat, body + "}").json()["choices"][0]["logprobs"]["content"];
  std::string letters;
  for (const Json& token : whole) {
    letters += token["token"].get<std::string>();
    EXPECT_EQ(token["top_logprobs"].size(), 2u);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);
    EXPECT_LE(token["logprob"].get<float>(), 0);
    EXPECT_EQ(token["bytes"].size(), 1u);
  }
  EXPECT_EQ(letters, "\n\nYes.");
  Json streamed = Json::array();
  for (const SseEvent& e : api.ask(ApiKind::kChat, body + R"(,"stream":true})").events()) {
    if (e.data == "[DONE]") continue;
    const Json chunk = e.json();
    for (const Json& token : chunk["choices"][0]["logprobs"]["content"]) streamed.push_back(token);
  }
  EXPECT_EQ(streamed, whole);
}

TEST(OpenAiChat, Refusals) {
  TestApi api("Yes.");
  struct Case {
    std::string more, param, message;
  };
  const std::vector<Case> cases = {
      {R"("messages":5)", "messages", "an array"},
      {R"("messages":[])", "messages", "at least one"},
      {R"("x":1)", "", "messages"},
      {R"("messages":[{"role":"king","content":"x"}])", "messages[0].role", "king"},
      {R"("messages":[{"role":"user","content":[{"type":"text","text":7}]}])", "messages[0].content[0].text",
       "a string"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}])", "messages",
       "images"},
      {kHi + R"(,"model":7)", "model", "a string"},
      {kHi + R"(,"stream":"yes")", "stream", "true or false"},
      {kHi + R"(,"temperature":"hot")", "temperature", "a number"},
      {kHi + R"(,"temperature":-1)", "temperature", ""},
      {kHi + R"(,"top_p":7)", "top_p", ""},
      {kHi + R"(,"n":0)", "n", "1 to 16"},
      {kHi + R"(,"n":1.5)", "n", "whole"},
      {kHi + R"(,"n":18446744073709551615)", "n", "1 to 16"},
      {kHi + R"(,"max_tokens":0)", "max_tokens", ""},
      {kHi + R"(,"max_completion_tokens":-1)", "max_completion_tokens", ""},
      {kHi + R"(,"stop":[5])", "stop[0]", "a string"},
      {kHi + R"(,"logit_bias":[])", "logit_bias", "an object"},
      {kHi + R"(,"stream_options":true)", "stream_options", "an object"},
      {kHi + R"(,"stream_options":{"include_usage":1})", "stream_options.include_usage", "true or false"},
      {kHi + R"(,"tools":[{"function":{"name":"f","strict":1}}])", "tools[0].function.strict", "true or false"},
      {kHi + R"(,"tools":{})", "tools", "an array"},
      {kHi + R"(,"tool_choice":"required")", "tool_choice", "no tools"},
      {kHi + "," + kTools + R"(,"tool_choice":"always")", "tool_choice", "auto"},
      {kHi + "," + kTools + R"(,"tool_choice":{"type":"function","function":{"name":"fly"}})", "tool_choice", "fly"},
      {kHi + R"(,"parallel_tool_calls":0)", "parallel_tool_calls", "true or false"},
      {kHi + R"(,"response_format":"json")", "response_format", "an object"},
      {kHi + R"(,"response_format":{"type":"xml"})", "response_format.type", "json_schema"},
      {kHi + R"(,"response_format":{"type":"json_schema","json_schema":{}})", "response_format.json_schema.schema", ""},
      {kHi + R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"wonder"}}})",
       "response_format", ""},
      {kHi + R"(,"reasoning_effort":"vast")", "reasoning_effort", "vast"},
      {kHi + R"(,"chat_template_kwargs":[])", "chat_template_kwargs", "an object"},
  };
  for (const Case& c : cases) {
    const Answered a = api.ask(ApiKind::kChat, "{" + c.more + "}");
    EXPECT_EQ(a.status, 400) << c.more;
    const Json error = a.json()["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"].is_null() ? "" : error["param"].get<std::string>(), c.param) << a.bytes;
    EXPECT_NE(error["message"].get<std::string>().find(c.message), std::string::npos) << a.bytes;
  }
  for (const char* body : {"", "[]", "{", "\"x\"", "{\"a\":\"\xff\"}"}) {
    EXPECT_EQ(api.ask(ApiKind::kChat, body).status, 400) << body;
  }
  const std::string deep = std::string(100000, '[');
  EXPECT_EQ(api.ask(ApiKind::kChat, "{\"tools\":" + deep).status, 400);
}

TEST(OpenAiChat, LongPromptsSaySo) {
  TestApi api(fake::replies([](const std::string&) { return std::string("x"); }), {}, 100);
  const Answered a =
      api.ask(ApiKind::kChat, R"({"messages":[{"role":"user","content":")" + std::string(200, 'a') + "\"}]}");
  EXPECT_EQ(a.status, 400);
  EXPECT_EQ(a.json()["error"]["code"], "context_length_exceeded");
}

TEST(OpenAiChat, UnknownFieldsMakeNoDifference) {
  const auto request =
      parse_chat("{" + kHi + R"(,"store":false,"metadata":{"a":1},"user":"u","prediction":null,"verbosity":"low",
      "service_tier":"auto","prompt_cache_key":"k","safety_identifier":5,"tools":[{"type":"web_search"}]})",
                 {});
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_TRUE(request->conversation.tools.empty());
}

}  // namespace
}  // namespace calla
