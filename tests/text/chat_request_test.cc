#include "text/chat_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "text/chat_json.h"

namespace calla {
namespace {

constexpr const char* kHi = R"({"role":"user","content":"Hi"})";

Result<Prompt> prompt_of(const std::string& request, ChatRules rules) {
  CALLA_ASSIGN(const Conversation c, parse_conversation(request, rules));
  return ChatTemplate(ChatTemplate::Version::kQwen36).render(c, rules);
}

std::string rendered(const std::string& request, ChatRules rules = ChatRules::kLenient) {
  const auto prompt = prompt_of(request, rules);
  return prompt ? prompt->text : "error: " + prompt.error().message;
}

// A request with these messages and no generation prompt.
std::string messages(const std::string& list) {
  return "{\"add_generation_prompt\":false,\"messages\":[" + list + "]}";
}

// The arguments of a call, as the model reads them.
std::string arguments(const std::string& json, ChatRules rules = ChatRules::kLenient) {
  const std::string text =
      rendered(messages(std::string(kHi) +
                        R"(,{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" + json + "}}]}"),
               rules);
  const size_t begin = text.find("<function=f>\n");
  if (begin == text.npos) return text;
  const size_t end = text.find("</function>");
  return text.substr(begin + 13, end - begin - 13);
}

TEST(ChatRequest, Arguments) {
  EXPECT_EQ(
      arguments(R"({"a":"x","b":1.0,"c":{"d":null}})"),
      "<parameter=a>\nx\n</parameter>\n<parameter=b>\n1.0\n</parameter>\n<parameter=c>\n{\"d\": null}\n</parameter>\n");
  EXPECT_EQ(arguments(R"("{\"a\":\"x\",\"n\":12345678901234567890123}")"),
            "<parameter=a>\nx\n</parameter>\n<parameter=n>\n12345678901234567890123\n</parameter>\n");
  for (const char* none : {R"("")", R"(" \n")", R"("{}")", R"("null")", "null", "{}"})
    EXPECT_EQ(arguments(none), "") << none;
}

TEST(ChatRequest, ArgumentsThatAreNoObjectStayReadable) {
  EXPECT_EQ(arguments(R"("{\"a\": \"cut o")"), "<parameter=arguments>\n{\"a\": \"cut o\n</parameter>\n");
  EXPECT_EQ(arguments(R"("ls -l")"), "<parameter=arguments>\nls -l\n</parameter>\n");
  EXPECT_EQ(arguments(R"("[1,2]")"), "<parameter=arguments>\n[1,2]\n</parameter>\n");
  EXPECT_EQ(arguments(R"([1,2])"), "<parameter=arguments>\n[1, 2]\n</parameter>\n");
  EXPECT_EQ(arguments("5"), "<parameter=arguments>\n5\n</parameter>\n");
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  EXPECT_EQ(arguments("\"" + deep + "\""), "<parameter=arguments>\n" + deep + "\n</parameter>\n");
}

TEST(ChatRequest, OfficialRulesWantArgumentsInAnObject) {
  EXPECT_EQ(arguments(R"("{}")", ChatRules::kOfficial),
            "error: messages[1].tool_calls[0].function.arguments must be an object, not a string");
  EXPECT_EQ(arguments("null", ChatRules::kOfficial),
            "error: messages[1].tool_calls[0].function.arguments must be an object, not null");
}

TEST(ChatRequest, DeveloperIsSystem) {
  EXPECT_EQ(
      rendered(messages(R"({"role":"developer","content":[{"type":"input_text","text":"s"}]},)" + std::string(kHi))),
      "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
  EXPECT_EQ(rendered(messages(R"({"role":"developer","content":"s"})"), ChatRules::kOfficial),
            "error: messages[0].role is \"developer\"; expected system, user, assistant or tool");
}

TEST(ChatRequest, BillingHeadersAreDropped) {
  const std::string plain = rendered(messages(R"({"role":"system","content":"s"},)" + std::string(kHi)));
  EXPECT_EQ(
      rendered(messages(
          R"({"role":"system","content":[{"type":"text","text":"x-anthropic-billing-header: a; b=1"},{"type":"text","text":"s"}]},)" +
          std::string(kHi))),
      plain);
  EXPECT_EQ(rendered(messages(
                R"({"role":"system","content":"x-anthropic-billing-header: a"},{"role":"system","content":"s"},)" +
                std::string(kHi))),
            plain);
  EXPECT_EQ(rendered(messages(R"({"role":"system","content":"x-anthropic-billing-header: a"},)" + std::string(kHi))),
            rendered(messages(kHi)));
  // Only there: a user may write about it.
  EXPECT_NE(rendered(messages(R"({"role":"user","content":"x-anthropic-y"})")).find("x-anthropic-y"),
            std::string::npos);
}

TEST(ChatRequest, ReasoningIsAnAlias) {
  const auto with = [](const std::string& fields) {
    return rendered(
        messages(std::string(kHi) + R"(,{"role":"assistant","content":"<think>t</think>a")" + fields + "}"));
  };
  const auto turn = [](const std::string& reasoning, const std::string& content) {
    return "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n" + reasoning + "\n</think>\n\n" + content +
           "<|im_end|>\n";
  };
  EXPECT_EQ(with(""), turn("t", "a"));
  EXPECT_EQ(with(R"(,"reasoning":"r")"), turn("r", "<think>t</think>a"));
  EXPECT_EQ(with(R"(,"reasoning":"r","reasoning_content":"c")"), turn("c", "<think>t</think>a"));
  EXPECT_EQ(with(R"(,"reasoning":"r","reasoning_content":null)"), turn("r", "<think>t</think>a"));
  EXPECT_EQ(with(R"(,"reasoning":"")"), turn("t", "a"));
  EXPECT_EQ(with(R"(,"reasoning":{"x":1},"reasoning_content":5)"), turn("t", "a"));
}

TEST(ChatRequest, PartsOfClients) {
  const auto user = [](const std::string& parts) {
    return rendered(messages(R"({"role":"user","content":[)" + parts + "]}"));
  };
  const std::string image = "<|vision_start|><|image_pad|><|vision_end|>";
  const std::string video = "<|vision_start|><|video_pad|><|vision_end|>";
  EXPECT_EQ(
      user(R"({"type":"input_text","text":"a"},{"type":"input_image","file_id":"f"},{"type":"video_url","video_url":{}},
                    {"type":"output_text","text":"b"},{"type":"refusal","refusal":"no"},{"text":"c"})"),
      "<|im_start|>user\na" + image + video + "bnoc<|im_end|>\n");
  EXPECT_EQ(
      rendered(messages(std::string(kHi) +
                        R"(,{"role":"tool","tool_call_id":"1","name":"f","content":[{"type":"text","text":"r"}]})")),
      rendered(messages(std::string(kHi) + R"(,{"role":"tool","content":"r"})")));
}

TEST(ChatRequest, ToolsOfOtherTypesAreSkipped) {
  const std::string with =
      R"({"messages":[)" + std::string(kHi) +
      R"(],"tools":[{"type":"web_search"},{"type":"function","function":{"name":"f"}},{"name":"g"}]})";
  EXPECT_NE(rendered(with).find(
                "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n{\"name\": \"g\"}\n</tools>"),
            std::string::npos);
  EXPECT_NE(rendered(with, ChatRules::kOfficial).find("<tools>\n{\"type\": \"web_search\"}\n"), std::string::npos);
  EXPECT_EQ(rendered(R"({"messages":[)" + std::string(kHi) + R"(],"tools":[{"type":"web_search"}]})"),
            rendered(R"({"messages":[)" + std::string(kHi) + "]}"));
}

TEST(ChatRequest, WaysToSwitchThinkingOff) {
  const auto thinks = [](const std::string& fields) {
    return !rendered(R"({"messages":[)" + std::string(kHi) + "]" + fields + "}").ends_with("</think>\n\n");
  };
  EXPECT_TRUE(thinks(""));
  EXPECT_FALSE(thinks(R"(,"chat_template_kwargs":{"enable_thinking":false})"));
  EXPECT_FALSE(thinks(R"(,"enable_thinking":false)"));
  EXPECT_FALSE(thinks(R"(,"reasoning_effort":"none")"));
  EXPECT_TRUE(thinks(R"(,"reasoning_effort":"low")"));
  EXPECT_TRUE(thinks(R"(,"reasoning_effort":"none","enable_thinking":true)"));
  EXPECT_TRUE(thinks(R"(,"enable_thinking":false,"chat_template_kwargs":{"enable_thinking":true})"));
  EXPECT_FALSE(thinks(R"(,"enable_thinking":false,"chat_template_kwargs":{"enable_thinking":null})"));
}

TEST(ChatRequest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "request must be an object, not an array"},
      {"{", "request: not valid JSON at line 1, column 2"},
      {"{}", "messages is empty: there is nothing to answer"},
      {R"({"messages":{}})", "messages must be an array, not an object"},
      {R"({"messages":["x"]})", "messages[0] must be an object, not a string"},
      {R"({"messages":[{"role":"function"}]})",
       "messages[0].role is \"function\"; expected system, user, assistant or tool"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role is null; expected system, user, assistant or tool"},
      {R"({"messages":[{"role":"user","content":5}]})",
       "messages[0].content must be a string, an array of parts or null, not a number"},
      {R"({"messages":[{"role":"user","content":{}}]})",
       "messages[0].content must be a string, an array of parts or null, not an object"},
      {R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content[0] must be an object, not a string"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"audio"}]}]})",
       "messages[0].content[1].type \"audio\" is not supported; expected text, image_url or video"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text is missing, and it is no image or video"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":null}]}]})",
       "messages[0].content[0].text must be a string, not null"},
      {R"({"messages":[{"role":"system","content":[{"type":"image"}]}]})",
       "messages[0].content[0]: a system message cannot contain images or videos"},
      {R"({"messages":[{"role":"assistant","tool_calls":{}}]})",
       "messages[0].tool_calls must be an array, not an object"},
      {R"({"messages":[{"role":"assistant","tool_calls":[5]}]})",
       "messages[0].tool_calls[0] must be an object, not a number"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":null}]}]})",
       "messages[0].tool_calls[0].function must be an object, not null"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{}}]}]})",
       "messages[0].tool_calls[0].function.name must be a string, not null"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"name":5}]}]})",
       "messages[0].tool_calls[0].name must be a string, not a number"},
      {R"({"tools":{}})", "tools must be an array, not an object"},
      {R"({"tools":[{},5]})", "tools[1] must be an object, not a number"},
      {R"({"chat_template_kwargs":5})", "chat_template_kwargs must be an object, not a number"},
      {R"({"chat_template_kwargs":{"enable_thinking":"no"}})",
       "chat_template_kwargs.enable_thinking must be a boolean, not a string"},
      {R"({"add_generation_prompt":1})", "add_generation_prompt must be a boolean, not a number"},
  };
  for (const auto& [request, message] : cases)
    EXPECT_EQ(rendered(request), std::string("error: ") + message) << request;
}

TEST(ChatRequest, NestingIsCappedForParsedValuesToo) {
  nlohmann::ordered_json deep = nlohmann::ordered_json::array();
  for (int i = 0; i < 100; ++i) deep = nlohmann::ordered_json::array({deep});
  const auto read = read_conversation({{"messages", nlohmann::ordered_json::array()}, {"x", deep}});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().message, "request: nested deeper than 64 levels");
}

}  // namespace
}  // namespace calla
