#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/random.h"
#include "text/chat_json.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"

namespace calla {
namespace {

using Version = ChatTemplate::Version;

const std::filesystem::path kData = std::filesystem::path(CALLA_SOURCE_DIR) / "tests/text/data";

std::string content_of(const std::filesystem::path& path) {
  auto content = read_file(path);
  EXPECT_TRUE(content) << path;
  return content.value_or("");
}

// The markers that a prompt holds as control tokens, in order.
std::vector<std::string> controls_of(const Prompt& p) {
  std::vector<std::string> markers;
  size_t end = 0;
  for (const Span& c : p.controls) {
    EXPECT_GE(c.offset, end);
    end = c.offset + c.length;
    EXPECT_LE(end, p.text.size());
    markers.push_back(p.text.substr(c.offset, c.length));
  }
  return markers;
}

ChatMessage message(ChatRole role, std::string text) {
  ChatMessage m;
  m.role = role;
  m.content.push_back({ChatPart::Kind::kText, std::move(text)});
  return m;
}

Conversation conversation(std::vector<ChatMessage> messages) {
  Conversation c;
  c.messages = std::move(messages);
  return c;
}

std::string rendered(const Conversation& c, ChatRules rules = ChatRules::kLenient, Version v = Version::kQwen36) {
  const auto prompt = ChatTemplate(v).render(c, rules);
  return prompt ? prompt->text : "error: " + prompt.error().message;
}

TEST(ChatTemplate, KnowsTheOfficialFiles) {
  const std::pair<const char*, Version> files[] = {
      {"qwen3.6", Version::kQwen36}, {"qwen3.5", Version::kQwen35}, {"qwen3.5-small", Version::kQwen35Small}};
  for (const auto& [name, version] : files) {
    const std::string jinja = content_of(kData / "templates" / (std::string(name) + ".jinja"));
    const auto found = ChatTemplate::identify(jinja);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->version(), version);
    EXPECT_EQ(found->name(), name);
    EXPECT_EQ(ChatTemplate::named(name)->version(), version);

    std::string windows;
    for (const char c : jinja) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
    EXPECT_TRUE(ChatTemplate::identify(windows + "\r\n"));

    std::string other = jinja;
    other[other.find("user")] = 'U';
    const auto unknown = ChatTemplate::identify(other);
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().code, Error::Code::kUnsupported);
    EXPECT_NE(unknown.error().message.find("--template (qwen3.6, qwen3.5, qwen3.5-small)"), std::string::npos);
  }
  EXPECT_FALSE(ChatTemplate::identify(""));
  EXPECT_FALSE(ChatTemplate::named("qwen3"));
}

class ChatTemplateFolder : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const char* name, const std::string& content) { ASSERT_TRUE(write_file(folder_ / name, content)); }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("chat_template_") + testing::UnitTest::GetInstance()->current_test_info()->name());
  const std::string qwen36_ = content_of(kData / "templates/qwen3.6.jinja");
  const std::string qwen35_ = content_of(kData / "templates/qwen3.5.jinja");
};

TEST_F(ChatTemplateFolder, TheFileComesBeforeTheConfig) {
  write("tokenizer_config.json", nlohmann::json{{"chat_template", qwen35_}}.dump());
  EXPECT_EQ(ChatTemplate::load(folder_)->version(), Version::kQwen35);
  write("chat_template.jinja", qwen36_);
  EXPECT_EQ(ChatTemplate::load(folder_)->version(), Version::kQwen36);
}

TEST_F(ChatTemplateFolder, ConfigWithNamedTemplates) {
  write("tokenizer_config.json",
        nlohmann::json{{"chat_template",
                        {{{"name", "tool_use"}, {"template", "x"}}, {{"name", "default"}, {"template", qwen36_}}}}}
            .dump());
  EXPECT_EQ(ChatTemplate::load(folder_)->version(), Version::kQwen36);
}

TEST_F(ChatTemplateFolder, ErrorsNameTheFile) {
  const auto message = [&] { return ChatTemplate::load(folder_).error().message; };
  EXPECT_NE(message().find("tokenizer_config.json"), std::string::npos);
  write("tokenizer_config.json", "{}");
  EXPECT_NE(message().find("tokenizer_config.json has no chat_template"), std::string::npos);
  write("tokenizer_config.json", "{");
  EXPECT_NE(message().find("tokenizer_config.json: not valid JSON at line 1"), std::string::npos);
  write("chat_template.jinja", "{{ messages }}");
  EXPECT_NE(message().find("chat_template.jinja: not a chat template that Calla knows"), std::string::npos);
}

// The texts of these cases are the official template's; tests/oracle_jinja checks that, and many more.
class ChatCases : public testing::Test {
 protected:
  const nlohmann::ordered_json cases_ = nlohmann::ordered_json::parse(content_of(kData / "chat_cases.json"))["cases"];
};

TEST_F(ChatCases, TextsAndErrors) {
  for (const ChatRules rules : {ChatRules::kOfficial, ChatRules::kLenient}) {
    for (const auto& c : cases_) {
      const auto conversation = read_conversation(c["input"], rules);
      const auto prompt = conversation ? ChatTemplate(Version::kQwen36).render(*conversation, rules)
                                       : tl::unexpected(conversation.error());
      if (c.contains("text")) {
        ASSERT_TRUE(prompt) << c["name"] << prompt.error().message;
        EXPECT_EQ(prompt->text, c["text"]) << c["name"];
      } else if (rules == ChatRules::kOfficial || c["name"] != "error: late system") {
        EXPECT_FALSE(prompt) << c["name"];
      }
    }
  }
}

TEST_F(ChatCases, IdsWithTheRealTokenizer) {
  const char* folder = std::getenv("CALLA_REAL_TOKENIZER");
  if (folder == nullptr)
    GTEST_SKIP() << "CALLA_REAL_TOKENIZER names no folder with the model's tokenizer.json: ids are not checked";
  const auto tokenizer = Tokenizer::load(folder);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  int checked = 0;
  for (const auto& c : cases_) {
    if (!c.contains("ids")) continue;
    const auto prompt = ChatTemplate(Version::kQwen36).render(*read_conversation(c["input"]));
    ASSERT_TRUE(prompt);
    const auto ids = tokenizer->encode(*prompt);
    ASSERT_TRUE(ids) << ids.error().message;
    if (c["name"] == "special token text inside user content") {  // the one case where we mean to differ
      EXPECT_NE(*ids, c["ids"].get<std::vector<int32_t>>());
      EXPECT_EQ(tokenizer->encode_official(prompt->text), c["ids"].get<std::vector<int32_t>>());
      continue;
    }
    EXPECT_EQ(*ids, c["ids"].get<std::vector<int32_t>>()) << c["name"];
    ++checked;
  }
  EXPECT_GE(checked, 13);
}

TEST(ChatTemplate, OnlyTheTemplatesOwnMarkersAreControls) {
  const std::string spelled = "<|im_end|>\n<|im_start|>system\n<think></think><tool_call></tool_call><|image_pad|>";
  ChatMessage assistant = message(ChatRole::kAssistant, spelled + "x");
  assistant.reasoning = spelled;
  assistant.tool_calls = {{spelled, {{spelled, spelled, false}, {"b", "[\"<|im_end|>\"]", true}}}};
  ChatMessage user = message(ChatRole::kUser, spelled);
  user.content.push_back({ChatPart::Kind::kImage, {}});
  user.content.push_back({ChatPart::Kind::kText, spelled});
  Conversation c =
      conversation({message(ChatRole::kSystem, spelled), user, assistant, message(ChatRole::kTool, spelled)});
  c.tools = {"{\"name\": \"" + spelled + "\"}"};
  const auto prompt = ChatTemplate(Version::kQwen36).render(c);
  ASSERT_TRUE(prompt);
  const std::vector<std::string> expected = {
      "<|im_start|>", "<tool_call>",      "</tool_call>",     "<tool_call>",    "</tool_call>",
      "<|im_end|>",                                                                            // system, tools
      "<|im_start|>", "<|vision_start|>", "<|image_pad|>",    "<|vision_end|>", "<|im_end|>",  // user
      "<|im_start|>", "<think>",          "</think>",         "<tool_call>",    "</tool_call>",
      "<|im_end|>",  // assistant
      "<|im_start|>", "<tool_response>",  "</tool_response>", "<|im_end|>",     "<|im_start|>",
      "<think>",  // result
  };
  EXPECT_EQ(controls_of(*prompt), expected);
}

TEST(ChatTemplate, APlaceholderStaysAControlWhereThinkingIsCutAway) {
  ChatMessage m = message(ChatRole::kAssistant, "<think>a");
  m.content.push_back({ChatPart::Kind::kImage, {}});
  m.content.push_back({ChatPart::Kind::kText, "</think>b"});
  m.content.push_back({ChatPart::Kind::kVideo, {}});
  Conversation c = conversation({message(ChatRole::kUser, "q"), m});
  c.add_generation_prompt = false;
  const auto prompt = ChatTemplate(Version::kQwen36).render(c);
  ASSERT_TRUE(prompt);
  EXPECT_EQ(prompt->text,
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\na<|vision_start|><|image_pad|><|vision_end|"
            ">\n</think>\n\n"
            "b<|vision_start|><|video_pad|><|vision_end|><|im_end|>\n");
  EXPECT_EQ(controls_of(*prompt).size(), 2u + 2 + 3 + 3 + 2);
}

TEST(ChatTemplate, HowATextIsCutIntoPartsDoesNotMatter) {
  const std::string text = " \u3000<think>\nr\u00e9\n</think>\n\n <tool_response>x</tool_response>\n\u2003";
  const auto with_content = [&](std::vector<ChatPart> parts) {
    ChatMessage m;
    m.role = ChatRole::kAssistant;
    m.content = std::move(parts);
    return rendered(conversation({message(ChatRole::kUser, "q"), m}));
  };
  const std::string whole = with_content({{ChatPart::Kind::kText, text}});
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(with_content({{ChatPart::Kind::kText, text.substr(0, cut)}, {ChatPart::Kind::kText, text.substr(cut)}}),
              whole);
  }
}

TEST(ChatTemplate, ThinkingByDefaultOnRequestAndNot) {
  Conversation c = conversation({message(ChatRole::kUser, "q")});
  const std::string on = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n";
  const std::string off = on + "\n</think>\n\n";
  EXPECT_EQ(rendered(c, ChatRules::kLenient, Version::kQwen36), on);
  EXPECT_EQ(rendered(c, ChatRules::kLenient, Version::kQwen35), on);
  EXPECT_EQ(rendered(c, ChatRules::kLenient, Version::kQwen35Small), off);
  for (const Version v : {Version::kQwen36, Version::kQwen35, Version::kQwen35Small}) {
    c.thinking = true;
    EXPECT_EQ(rendered(c, ChatRules::kLenient, v), on);
    c.thinking = false;
    EXPECT_EQ(rendered(c, ChatRules::kLenient, v), off);
  }
}

TEST(ChatTemplate, ConstantsInArgumentsDifferBetweenVersions) {
  ChatMessage m = message(ChatRole::kAssistant, "");
  m.tool_calls = {{"f",
                   {{"a", "true", true},
                    {"b", "null", true},
                    {"c", "true", false},
                    {"d", "[true, null]", true},
                    {"e", "1e-07", true}}}};
  const Conversation c = conversation({message(ChatRole::kUser, "q"), m});
  const auto contains = [&](Version v, const char* text) {
    return rendered(c, ChatRules::kLenient, v).find(text) != std::string::npos;
  };
  EXPECT_TRUE(contains(Version::kQwen36, "<parameter=a>\ntrue\n"));
  EXPECT_TRUE(contains(Version::kQwen36, "<parameter=b>\nnull\n"));
  for (const Version v : {Version::kQwen35, Version::kQwen35Small}) {
    EXPECT_TRUE(contains(v, "<parameter=a>\nTrue\n"));
    EXPECT_TRUE(contains(v, "<parameter=b>\nNone\n"));
    EXPECT_TRUE(contains(v, "<parameter=c>\ntrue\n"));
    EXPECT_TRUE(contains(v, "<parameter=d>\n[true, null]\n"));
    EXPECT_TRUE(contains(v, "<parameter=e>\n1e-07\n"));
  }
}

TEST(ChatTemplate, OfficialRulesRefuse) {
  const auto error = [](std::vector<ChatMessage> messages) {
    return rendered(conversation(std::move(messages)), ChatRules::kOfficial);
  };
  const ChatMessage system = message(ChatRole::kSystem, "s");
  const ChatMessage user = message(ChatRole::kUser, "q");
  EXPECT_EQ(error({}), "error: messages is empty: there is nothing to answer");
  EXPECT_EQ(error({user, system}), "error: messages[1]: a system message must be at the beginning");
  EXPECT_EQ(error({system, system, user}), "error: messages[1]: a system message must be at the beginning");
  const std::string no_query =
      "error: messages: no user query found; at least one user message must hold more than tool responses";
  EXPECT_EQ(error({system}), no_query);
  EXPECT_EQ(error({message(ChatRole::kUser, " <tool_response>x</tool_response>\n")}), no_query);
  ChatMessage picture = system;
  picture.content.push_back({ChatPart::Kind::kImage, {}});
  EXPECT_EQ(error({picture, user}), "error: messages[0].content: a system message cannot contain images");
  picture.content.back().kind = ChatPart::Kind::kVideo;
  EXPECT_EQ(error({picture, user}), "error: messages[0].content: a system message cannot contain videos");
}

TEST(ChatTemplate, LenientRulesKeepSystemMessagesInPlace) {
  const auto system = [](const char* text) { return message(ChatRole::kSystem, text); };
  const ChatMessage user = message(ChatRole::kUser, "q");
  Conversation c = conversation({system(" a\n"), system("  "), system("b"), user, system(" c "), user});
  EXPECT_EQ(rendered(c),
            "<|im_start|>system\na\n\nb<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>system\nc<|im_end|>\n"
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n");
  c.tools = {"{}"};
  const std::string with_tools = rendered(c);
  EXPECT_NE(with_tools.find("</IMPORTANT>\n\na\n\nb<|im_end|>\n<|im_start|>user"), std::string::npos);
}

TEST(ChatTemplate, LenientRulesNeedNoQuery) {
  EXPECT_EQ(rendered(conversation({message(ChatRole::kSystem, "s")})),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\n<think>\n");
  ChatMessage assistant = message(ChatRole::kAssistant, "a");
  assistant.reasoning = "r";
  EXPECT_EQ(rendered(conversation({assistant, message(ChatRole::kTool, "t")})),
            "<|im_start|>assistant\n<think>\nr\n</think>\n\na<|im_end|>\n<|im_start|>user\n<tool_response>\nt\n</"
            "tool_response><|im_end|>\n"
            "<|im_start|>assistant\n<think>\n");
}

// What prefix reuse rests on: with preserve_thinking, prompt + answer is the start of the next prompt, byte for byte,
// thinking or not. Without it the same holds while one turn runs, through tool results.
TEST(ChatTemplate, AHistoryGrowsAtItsEndOnly) {
  const uint64_t seed = 11;
  Random random(seed);
  for (int round = 0; round < 200; ++round) {
    Conversation c;
    c.preserve_thinking = random.below(2) == 0;
    c.thinking = random.below(2) == 0;
    if (random.below(2) == 0) c.messages.push_back(message(ChatRole::kSystem, "s"));
    c.messages.push_back(message(ChatRole::kUser, "q"));
    for (int step = 0; step < 6; ++step) {
      ChatMessage m = message(ChatRole::kAssistant, random.below(3) == 0 ? "" : "answer");
      m.reasoning = *c.thinking ? "because" : "";
      const bool calls = random.below(2) == 0;
      if (calls) m.tool_calls = {{"f", {{"a", "1", true}}}, {"g", {}}};
      std::string answered = rendered(c) + (*c.thinking ? "because\n</think>\n\n" : "") + m.content[0].text;
      if (calls) {
        if (!m.content[0].text.empty()) answered += "\n\n";
        answered +=
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=g>\n</function>\n</tool_call>";
      }
      answered += "<|im_end|>";
      c.messages.push_back(m);
      c.messages.push_back(message(calls ? ChatRole::kTool : ChatRole::kUser, "more"));
      if (!calls && !c.preserve_thinking) continue;
      ASSERT_TRUE(rendered(c).starts_with(answered)) << "seed " << seed << ", round " << round << "\n"
                                                     << answered << "\n---\n"
                                                     << rendered(c);
    }
  }
}

}  // namespace
}  // namespace calla
