#include "api/session.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/api/testing.h"

namespace calla {
namespace {

using namespace test;  // NOLINT

constexpr ApiKind kAll[] = {ApiKind::kChat, ApiKind::kCompletions, ApiKind::kResponses, ApiKind::kMessages};

// A request of one user's text in each API's form. more: further members.
std::string hi(ApiKind kind, const std::string& more = "") {
  switch (kind) {
    case ApiKind::kChat:
      return R"({"messages":[{"role":"user","content":"Hi"}])" + more + "}";
    case ApiKind::kCompletions:
      return R"({"prompt":"Hi","max_tokens":2000)" + more + "}";
    case ApiKind::kResponses:
      return R"({"input":"Hi")" + more + "}";
    case ApiKind::kMessages:
      return R"({"max_tokens":2000,"messages":[{"role":"user","content":"Hi"}])" + more + "}";
  }
  return {};
}

// Says the same letter for seconds, unless it is stopped.
fake::Next endless() {
  return [](const std::vector<int32_t>&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return 'a';
  };
}

void expect_idle(Service& service) {
  for (int i = 0; i < 500 && service.stats().running + service.stats().queued > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(service.stats().running + service.stats().queued, 0);
}

TEST(Session, CancelEndsTheAnswer) {
  TestApi api(endless());
  for (const ApiKind kind : kAll) {
    const auto output = std::make_shared<TestOutput>();
    const auto call = api.api().answer(kind, hi(kind, R"(,"stream":true)"), output);
    ASSERT_TRUE(call);
    output->wait_for_bytes();
    call->cancel();
    expect_idle(api.service());
    call->cancel();
  }
  EXPECT_EQ(api.service().stats().cancelled, 4u);
}

TEST(Session, ReadersThatAreGoneEndTheAnswer) {
  TestApi api(endless());
  for (const ApiKind kind : kAll) {
    const auto output = std::make_shared<TestOutput>(3);
    ASSERT_TRUE(api.api().answer(kind, hi(kind, R"(,"stream":true)"), output));
    output->wait_for_bytes();
    expect_idle(api.service());
    EXPECT_FALSE(output->ended);
  }
}

TEST(Session, AFullQueueIs503) {
  ServiceOptions options;
  options.queue = 0;
  TestApi api(endless(), {}, 8192, options);
  for (const ApiKind kind : kAll) {
    const Answered a = api.ask(kind, hi(kind, R"(,"stream":true)"));
    EXPECT_EQ(a.status, 503);
    EXPECT_EQ(a.json()["error"]["type"], kind == ApiKind::kMessages ? "overloaded_error" : "server_error");
  }
}

TEST(Session, AStreamThatIsBrokenOffSaysSo) {
  for (const ApiKind kind : kAll) {
    TestApi api(endless());
    const auto output = std::make_shared<TestOutput>();
    ASSERT_TRUE(api.api().answer(kind, hi(kind, R"(,"stream":true)"), output));
    output->wait_for_bytes();
    api.service().stop(false);
    output->wait();
    std::vector<SseEvent> events = parse_sse(output->bytes);
    if (events.back().data == "[DONE]") events.pop_back();
    const Json last = events.back().json();
    const Json& error = kind == ApiKind::kResponses ? last["response"]["error"] : last["error"];
    EXPECT_EQ(error["message"], "the server is shutting down") << last;
    if (kind == ApiKind::kResponses) {
      EXPECT_EQ(last["type"], "response.failed");
    }
    if (kind == ApiKind::kMessages) {
      EXPECT_EQ(events.back().name, "error");
    }
  }
}

// The second turn of an agent: two calls in parallel, their results, and a client that echoes the reasoning, or not.
TEST(Session, TheNextTurnReusesAllThatWasSaid) {
  const std::string answer = "I look.\n</think>\n\nOne moment.\n\n" +
                             tagged_call("read", tagged_parameter("path", "a")) + "\n" +
                             tagged_call("read", tagged_parameter("path", "b"));
  const auto cached = [](ApiKind kind, const Json& body) {
    if (kind == ApiKind::kMessages) return body["usage"]["cache_read_input_tokens"].get<int>();
    const char* details = kind == ApiKind::kChat ? "prompt_tokens_details" : "input_tokens_details";
    return body["usage"][details]["cached_tokens"].get<int>();
  };
  const auto total = [](ApiKind kind, const Json& body) {
    const Json& u = body["usage"];
    if (kind != ApiKind::kMessages) return u["total_tokens"].get<int>();
    return u["input_tokens"].get<int>() + u["cache_read_input_tokens"].get<int>() + u["output_tokens"].get<int>();
  };
  for (const bool reasoning : {true, false}) {
    for (const ApiKind kind : {ApiKind::kChat, ApiKind::kResponses, ApiKind::kMessages}) {
      TestApi api(answer);
      Json request = *parse_json(hi(kind));
      const Json schema = {{"type", "object"}, {"properties", {{"path", {{"type", "string"}}}}}};
      if (kind == ApiKind::kChat) {
        request["tools"] = {{{"type", "function"}, {"function", {{"name", "read"}, {"parameters", schema}}}}};
      } else if (kind == ApiKind::kResponses) {
        request["tools"] = {{{"type", "function"}, {"name", "read"}, {"parameters", schema}}};
        request["input"] = {{{"role", "user"}, {"content", "Hi"}}};
      } else {
        request["tools"] = {{{"name", "read"}, {"input_schema", schema}}};
        request["thinking"] = {{"type", "adaptive"}};
      }
      const Json first = api.ask(kind, python_json(request)).json();
      if (kind == ApiKind::kChat) {
        Json message = first["choices"][0]["message"];
        if (!reasoning) message.erase("reasoning_content");
        request["messages"].push_back(message);
        for (const Json& call : message["tool_calls"]) {
          request["messages"].push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "ok"}});
        }
      } else if (kind == ApiKind::kResponses) {
        for (const Json& item : first["output"]) {
          if (reasoning || item["type"] != "reasoning") request["input"].push_back(item);
        }
        for (const Json& item : first["output"]) {
          if (item["type"] != "function_call") continue;
          request["input"].push_back(
              {{"type", "function_call_output"}, {"call_id", item["call_id"]}, {"output", "ok"}});
        }
      } else {
        Json content = first["content"];
        if (!reasoning) content.erase(content.begin());
        Json results = Json::array();
        for (const Json& block : content) {
          if (block["type"] != "tool_use") continue;
          results.push_back({{"type", "tool_result"}, {"tool_use_id", block["id"]}, {"content", "ok"}});
        }
        request["messages"].push_back({{"role", "assistant"}, {"content", content}});
        request["messages"].push_back({{"role", "user"}, {"content", results}});
      }
      const Json second = api.ask(kind, python_json(request)).json();
      // All but the stop token, which the model has not read.
      EXPECT_GE(cached(kind, second), total(kind, first) - 1) << static_cast<int>(kind) << reasoning;
    }
  }
}

class SessionOfBud : public testing::Test {
 protected:
  static std::unique_ptr<Model> open() {
    RunnerOptions options;
    options.context = 2048;
    options.sequences = 2;
    auto model = Model::open(CALLA_SOURCE_DIR "/models/bud", options);
    EXPECT_TRUE(model) << model.error().message;
    return std::move(*model);
  }
  // The content of a chat answer, streamed or not.
  static Json message(const Answered& a, bool stream) {
    if (!stream) return a.json()["choices"][0]["message"];
    Json out = {{"content", ""}};
    for (const SseEvent& e : a.events()) {
      if (e.data == "[DONE]") continue;
      const Json chunk = e.json();
      const Json& delta = chunk["choices"][0]["delta"];
      if (delta.contains("content"))
        out["content"] = out["content"].get<std::string>() + delta["content"].get<std::string>();
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        Json& calls = out["tool_calls"];
        if (call.contains("id")) {
          calls.push_back(call);
        } else {
          Json& arguments = calls[call["index"].get<size_t>()]["function"]["arguments"];
          arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
        }
      }
    }
    return out;
  }
};

// Streamed and not, with thinking and without.
TEST_F(SessionOfBud, AnswersKeepToASchema) {
  TestApi api(open());
  for (const bool stream : {false, true}) {
    for (const bool thinking : {false, true}) {
      const std::string common = fmt::format(
          R"({{"messages":[{{"role":"user","content":"What is 2 + 3?"}}],"enable_thinking":{},"thinking_budget":10,"stream":{},"max_tokens":400)",
          thinking, stream);
      Json answer = message(
          api.ask(ApiKind::kChat, common + R"(,"response_format":{"type":"json_schema","json_schema":{"name":"sum",
          "schema":{"type":"object","properties":{"sum":{"type":"integer","minimum":0,"maximum":99},"unit":{"enum":["none"]}},
          "required":["sum","unit"],"additionalProperties":false}}}})"),
          stream);
      auto parsed = parse_json(answer["content"].get<std::string>());
      ASSERT_TRUE(parsed) << answer;
      EXPECT_TRUE((*parsed)["sum"].is_number_integer()) << answer;
      EXPECT_EQ((*parsed)["unit"], "none");
      EXPECT_EQ(parsed->size(), 2u);

      answer = message(api.ask(ApiKind::kChat, common + R"(,"tool_choice":{"type":"function","function":{"name":"b"}},
          "parallel_tool_calls":false,"tools":[
          {"type":"function","function":{"name":"a","parameters":{"type":"object","properties":{}}}},
          {"type":"function","function":{"name":"b","parameters":{"type":"object","properties":{"n":{"type":"integer","maximum":9,"minimum":0}},"required":["n"]}}}]})"),
                       stream);
      ASSERT_EQ(answer["tool_calls"].size(), 1u) << answer;
      EXPECT_EQ(answer["tool_calls"][0]["function"]["name"], "b");
      parsed = parse_json(answer["tool_calls"][0]["function"]["arguments"].get<std::string>());
      ASSERT_TRUE(parsed) << answer;
      EXPECT_TRUE((*parsed)["n"].is_number_integer()) << answer;
    }
  }
}

// What a grammar cannot express is left out, unless the tool is strict. The same tools, so that nobody gets the other's
// grammar.
TEST_F(SessionOfBud, OnlyStrictToolsRefuseWhatCannotBeExpressed) {
  TestApi api(open());
  const std::string schema =
      R"({"type":"object","properties":{"n":{"type":"integer","not":{"const":3}}},"required":["n"]})";
  for (const char* strict : {"false", "true", "false"}) {
    const std::string rest = fmt::format(R"("name":"f","strict":{},"parameters":{})", strict, schema);
    const std::pair<ApiKind, std::string> requests[] = {
        {ApiKind::kChat,
         R"("messages":[{"role":"user","content":"Hi"}],"tool_choice":"required","max_tokens":60,"tools":[{"type":"function","function":{)" +
             rest + "}}]"},
        {ApiKind::kResponses,
         R"("input":"Hi","tool_choice":"required","max_output_tokens":60,"tools":[{"type":"function",)" + rest + "}]"},
        {ApiKind::kMessages,
         fmt::format(
             R"("messages":[{{"role":"user","content":"Hi"}}],"tool_choice":{{"type":"any"}},"max_tokens":60,"tools":[{{"name":"f","strict":{},"input_schema":{}}}])",
             strict, schema)}};
    for (const auto& [kind, body] : requests) {
      const Answered a = api.ask(kind, "{" + body + "}");
      EXPECT_EQ(a.status, std::string_view(strict) == "true" ? 400 : 200) << a.bytes;
      EXPECT_EQ(a.bytes.find("#/properties/n/not is not supported") != std::string::npos, a.status == 400) << a.bytes;
    }
  }
}

// Tools that may be called and an answer that must be JSON: one or the other.
TEST_F(SessionOfBud, ASchemaBesideTools) {
  TestApi api(open());
  for (const char* user : {"Hi", "What is 2 + 3?"}) {
    const Json answer = message(
        api.ask(ApiKind::kChat,
                fmt::format(R"({{"messages":[{{"role":"user","content":"{}"}}],"enable_thinking":false,"max_tokens":300,
        "tools":[{{"type":"function","function":{{"name":"ping"}}}}],"response_format":{{"type":"json_schema","json_schema":{{"name":"x",
        "schema":{{"type":"object","properties":{{"sum":{{"enum":[5,6]}}}},"required":["sum"],"additionalProperties":false}}}}}}}})",
                            user)),
        false);
    if (answer.contains("tool_calls")) {
      EXPECT_EQ(answer["tool_calls"][0]["function"]["name"], "ping");
      EXPECT_TRUE(answer["content"].is_null());
    } else {
      const auto parsed = parse_json(answer["content"].get<std::string>());
      ASSERT_TRUE(parsed) << answer;
      EXPECT_TRUE((*parsed)["sum"] == 5 || (*parsed)["sum"] == 6);
    }
  }
}

TEST_F(SessionOfBud, TheSameSeedTheSameAnswer) {
  TestApi api(open());
  const auto text = [&](const std::string& more) {
    const Json body =
        api.ask(ApiKind::kChat, R"({"messages":[{"role":"user","content":"Tell me a story."}],"enable_thinking":false,
        "temperature":1,"max_tokens":20)" +
                                    more + "}")
            .json();
    return body["choices"][0]["message"]["content"].get<std::string>();
  };
  EXPECT_EQ(text(R"(,"seed":5)"), text(R"(,"seed":5)"));
  EXPECT_NE(text(R"(,"seed":5)"), text(R"(,"seed":6)"));
  const Json two =
      api.ask(ApiKind::kChat, R"({"messages":[{"role":"user","content":"Tell me a story."}],"enable_thinking":false,
      "temperature":1,"max_tokens":20,"seed":5,"n":2})")
          .json();
  EXPECT_EQ(two["choices"][0]["message"]["content"], text(R"(,"seed":5)"));
  EXPECT_EQ(two["choices"][1]["message"]["content"], text(R"(,"seed":6)"));
}

}  // namespace
}  // namespace calla
