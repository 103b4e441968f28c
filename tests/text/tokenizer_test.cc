#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"
#include "base/random.h"
#include "text/nfc.h"
#include "text/utf8.h"

namespace calla {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<int32_t>;

const fs::path kData = fs::path(CALLA_SOURCE_DIR) / "tests/text/data";

json tiny_json() {
  return json::parse(*read_file(kData / "tiny/tokenizer.json"));
}

const Tokenizer& tiny() {
  static const Result<Tokenizer> t = Tokenizer::load(kData / "tiny");
  EXPECT_TRUE(t) << t.error().message;
  return *t;
}

Ids encode(const Tokenizer& t, std::string_view text) {
  Ids ids;
  t.encode(text, ids);
  return ids;
}

std::string bytes(const Tokenizer& t, const Ids& ids) {
  std::string out;
  for (const int32_t id : ids) out += t.bytes(id);
  return out;
}

// A text of pieces that meet the tokenizer's edges, with random bytes between them.
std::string hostile_text() {
  static const std::vector<std::string> parts = {"<|im_end|>",
                                                 "<think>",
                                                 "</think>",
                                                 "<tool_call>",
                                                 "<|im_",
                                                 "|>",
                                                 " the",
                                                 "It's",
                                                 "中文",
                                                 "e\u0301",
                                                 "\u0301\u0316",
                                                 "\r\n",
                                                 "   ",
                                                 "12",
                                                 "qjz",
                                                 "zxq",
                                                 "\xff",
                                                 "\xe4\xb8",
                                                 "\xf0\x9f\x99",
                                                 "\xed\xa0\x80",
                                                 std::string(100, 'e'),
                                                 std::string(1, '\0')};
  const auto part = rc::gen::oneOf(rc::gen::elementOf(parts), rc::gen::arbitrary<std::string>());
  const auto list = *rc::gen::container<std::vector<std::string>>(part);
  std::string text;
  for (const std::string& s : list) text += s;
  return text;
}

TEST(Tokenizer, PlainTextNeverBecomesAControlToken) {
  EXPECT_TRUE(rc::check([] {
    const std::string text = hostile_text();
    for (const int32_t id : encode(tiny(), text)) RC_ASSERT(!tiny().is_control(id));
  }));
}

TEST(Tokenizer, TheBytesOfTheIdsAreTheTextInNfc) {
  EXPECT_TRUE(rc::check([] {
    const std::string text = hostile_text();
    RC_ASSERT(bytes(tiny(), encode(tiny(), text)) == nfc(repair_utf8(text)));
  }));
}

TEST(Tokenizer, ATokenThatMergingDoesNotReachIsNotUsed) {
  for (const char* text : {"qjz", "zxq", " unreachable"}) {
    for (int i = 0; i < 2; ++i) {  // also once it is known
      EXPECT_GT(encode(tiny(), text).size(), 1u);
      EXPECT_EQ(bytes(tiny(), encode(tiny(), text)), text);
    }
  }
}

TEST(Tokenizer, OnlyTheMarkersOfAPromptAreControls) {
  const Tokenizer& t = tiny();
  const Prompt prompt{"<|im_start|>user\n<|im_end|> it's<|im_end|>\n", {{0, 12}, {32, 10}}};
  ASSERT_EQ(prompt.text.substr(32, 10), "<|im_end|>");
  Ids expected{*t.control_id("<|im_start|>")};
  t.encode("user\n<|im_end|> it's", expected);
  expected.push_back(*t.control_id("<|im_end|>"));
  t.encode("\n", expected);
  EXPECT_EQ(*t.encode(prompt), expected);

  const Prompt unknown{"a<|vision_start|>", {{1, 16}}};
  ASSERT_FALSE(t.encode(unknown));
  EXPECT_EQ(t.encode(unknown).error().message, "the tokenizer has no control token \"<|vision_start|>\"");
}

TEST(Tokenizer, OfficialTakesTheLeftmostAndThereTheLongestMarker) {
  const Tokenizer& t = tiny();
  const int32_t end = *t.control_id("<|im_end|>");
  const int32_t longer = *t.control_id("<|im_end|>\n\n");
  EXPECT_EQ(t.encode_official("<|im_end|>\n\n"), Ids{longer});
  EXPECT_EQ(t.encode_official("<|im_end|>\n"), (Ids{end, encode(t, "\n")[0]}));
  EXPECT_EQ(t.encode_official("<<|im_end|>"), (Ids{encode(t, "<")[0], end}));
  EXPECT_EQ(t.encode_official(""), Ids{});
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer& t = tiny();
  const int32_t end = *t.control_id("<|im_end|>");
  EXPECT_TRUE(t.is_control(end) && t.is_special(end));
  const int32_t think = *t.control_id("<think>");
  EXPECT_TRUE(t.is_control(think) && !t.is_special(think));
  EXPECT_EQ(t.bytes(think), "<think>");
  EXPECT_FALSE(t.control_id("the") || t.control_id(""));
  EXPECT_EQ(t.size(), *t.control_id("<|im_end|>\n\n") + 1);
  for (const int32_t id : {-1, t.size(), t.size() + 1000, *t.control_id("<|endoftext|>") - 1}) {
    EXPECT_EQ(t.bytes(id), "") << id;
    EXPECT_FALSE(t.is_control(id) || t.is_special(id)) << id;
  }
}

TEST(Tokenizer, ThreadsGetTheSameIds) {
  const std::string text = *read_file(kData / "tiny/tokenizer.json");
  const Result<Tokenizer> fresh = Tokenizer::load(kData / "tiny");
  ASSERT_TRUE(fresh);
  std::vector<Ids> ids(4);
  std::vector<std::thread> threads;
  for (Ids& out : ids) threads.emplace_back([&] { fresh->encode(text, out); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& out : ids) EXPECT_EQ(out, encode(tiny(), text));
}

TEST(TokenizerJson, MergesMayBePairs) {
  json j = tiny_json();
  for (json& merge : j["model"]["merges"]) {
    const std::string both = merge;
    const size_t space = both.find(' ');
    merge = {both.substr(0, space), both.substr(space + 1)};
  }
  const auto t = Tokenizer::parse(j.dump());
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(encode(*t, j.dump()), encode(tiny(), j.dump()));
}

TEST(TokenizerJson, TheConfigMayAddControlTokens) {
  const int32_t id = tiny().size() + 3;
  const json think = {{"content", "<think>"}, {"special", false}};
  json config = {{"added_tokens_decoder",
                  {{std::to_string(*tiny().control_id("<think>")), think},
                   {std::to_string(id), {{"content", "<|more|>"}, {"special", true}}}}}};
  const auto t = Tokenizer::parse(tiny_json().dump(), config.dump());
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(t->control_id("<|more|>"), id);
  EXPECT_TRUE(t->is_special(id));
  config["added_tokens_decoder"]["7"] = think;
  const auto twice = Tokenizer::parse(tiny_json().dump(), config.dump());
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().message,
            "tokenizer_config.json: added_tokens_decoder.\"7\".content \"<think>\" is defined before, differently");
}

struct BadFile {
  const char* message;
  std::function<void(json&)> change;
};

TEST(TokenizerJson, EachMistakeHasItsError) {
  const BadFile cases[] = {
      {"tokenizer.json: model is missing", [](json& j) { j.erase("model"); }},
      {"tokenizer.json: model must be an object", [](json& j) { j["model"] = 3; }},
      {"tokenizer.json: model.type is \"Unigram\"; only \"BPE\" is supported",
       [](json& j) { j["model"]["type"] = "Unigram"; }},
      {"tokenizer.json: model.byte_fallback is true, which is not supported",
       [](json& j) { j["model"]["byte_fallback"] = true; }},
      {"tokenizer.json: model.ignore_merges must be true or false",
       [](json& j) { j["model"]["ignore_merges"] = "no"; }},
      {"tokenizer.json: model.dropout must be null", [](json& j) { j["model"]["dropout"] = 0.1; }},
      {"tokenizer.json: model.end_of_word_suffix must be empty or null",
       [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"tokenizer.json: normalizer must be an object", [](json& j) { j["normalizer"] = nullptr; }},
      {"tokenizer.json: normalizer.type is \"NFKC\"; only \"NFC\" is supported",
       [](json& j) { j["normalizer"]["type"] = "NFKC"; }},
      {"tokenizer.json: pre_tokenizer.type is \"ByteLevel\"; only \"Sequence\" is supported",
       [](json& j) { j["pre_tokenizer"] = j["decoder"]; }},
      {"tokenizer.json: pre_tokenizer.pretokenizers must be Split, then ByteLevel",
       [](json& j) { j["pre_tokenizer"]["pretokenizers"].erase(1); }},
      {"tokenizer.json: pre_tokenizer.pretokenizers[0].pattern.Regex is not the pattern of Qwen3.5 and 3.6, the only "
       "one that is supported",
       [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+"; }},
      {"tokenizer.json: pre_tokenizer.pretokenizers[0].pattern.Regex is missing",
       [](json& j) {
         j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", " "}};
       }},
      {"tokenizer.json: pre_tokenizer.pretokenizers[0].behavior must be \"Isolated\"",
       [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }},
      {"tokenizer.json: pre_tokenizer.pretokenizers[1].use_regex is missing",
       [](json& j) { j["pre_tokenizer"]["pretokenizers"][1].erase("use_regex"); }},
      {"tokenizer.json: pre_tokenizer.pretokenizers[1].add_prefix_space is true, which is not supported",
       [](json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }},
      {"tokenizer.json: post_processor.type is \"TemplateProcessing\"; only \"ByteLevel\" is supported",
       [](json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"}};
       }},
      {"tokenizer.json: decoder is missing", [](json& j) { j.erase("decoder"); }},
      {"tokenizer.json: added_tokens must be an array", [](json& j) { j["added_tokens"] = "x"; }},
      {"tokenizer.json: added_tokens[1].id must be a token id from 0 to 1048575",
       [](json& j) { j["added_tokens"][1]["id"] = -1; }},
      {"tokenizer.json: added_tokens[1].id is missing", [](json& j) { j["added_tokens"][1].erase("id"); }},
      {"tokenizer.json: added_tokens[1].content is empty", [](json& j) { j["added_tokens"][1]["content"] = ""; }},
      {"tokenizer.json: added_tokens[3].lstrip is true, which is not supported",
       [](json& j) { j["added_tokens"][3]["lstrip"] = true; }},
      {"tokenizer.json: added_tokens[4].content \"<tool_call>\" is defined before, differently",
       [](json& j) { j["added_tokens"][4]["content"] = "<tool_call>"; }},
      {"tokenizer.json: added_tokens[4] has the id 1048575, which is taken",
       [](json& j) { j["added_tokens"][3]["id"] = j["added_tokens"][4]["id"] = 1048575; }},
      {"tokenizer.json: model.vocab gives the token \"the\" an id that is not a number from 0 to 1048575",
       [](json& j) { j["model"]["vocab"]["the"] = 1048576; }},
      {"tokenizer.json: model.vocab gives the token \"the\" the id 12, but the id or the token is taken or empty",
       [](json& j) { j["model"]["vocab"]["the"] = 12; }},
      {"tokenizer.json: model.vocab gives the token \"\\u001b[2J\" characters that stand for no byte",
       [](json& j) { j["model"]["vocab"]["\x1b[2J"] = 100000; }},
      {"tokenizer.json: model.vocab gives the token \"\" the id 100000, but the id or the token is taken or empty",
       [](json& j) { j["model"]["vocab"][""] = 100000; }},
      {"tokenizer.json: model.vocab gives the added token \"<think>\" another id",
       [](json& j) { j["model"]["vocab"]["<think>"] = 100000; }},
      {"tokenizer.json: model.vocab has no token for the byte 0x20",
       [](json& j) { j["model"]["vocab"].erase("\u0120"); }},
      {"tokenizer.json: model.vocab must be an object", [](json& j) { j["model"]["vocab"] = json::array(); }},
      {"tokenizer.json: model.merges is missing", [](json& j) { j["model"].erase("merges"); }},
      {"tokenizer.json: model.merges[3] must be two tokens, as \"a b\" or [\"a\", \"b\"]",
       [](json& j) { j["model"]["merges"][3] = "ab"; }},
      {"tokenizer.json: model.merges[3] must be two tokens, as \"a b\" or [\"a\", \"b\"]",
       [](json& j) {
         j["model"]["merges"][3] = {"a", "b", "c"};
       }},
      {"tokenizer.json: model.merges[3] has \"zzz\", which is not in the vocabulary",
       [](json& j) { j["model"]["merges"][3] = "zzz a"; }},
      {"tokenizer.json: model.merges[3] has \"a b\", which is not in the vocabulary",
       [](json& j) { j["model"]["merges"][3] = "a a b"; }},
      {"tokenizer.json: model.merges[3] makes \"|@\", which is not in the vocabulary",
       [](json& j) { j["model"]["merges"][3] = "| @"; }},
      {"tokenizer.json: model.merges[453] repeats an earlier merge",
       [](json& j) { j["model"]["merges"].push_back(j["model"]["merges"][7]); }},
  };
  for (const BadFile& bad : cases) {
    json j = tiny_json();
    bad.change(j);
    const auto t = Tokenizer::parse(j.dump());
    ASSERT_FALSE(t) << bad.message;
    EXPECT_EQ(t.error().message, bad.message);
  }
}

// No merge may make a control token, or plain text could become one.
TEST(TokenizerJson, AMergeIntoAControlTokenIsRefused) {
  json j = tiny_json();
  j["model"]["merges"].push_back("< think>");
  j["model"]["vocab"]["think>"] = 100000;
  j["model"]["vocab"]["<think>"] = *tiny().control_id("<think>");
  const auto t = Tokenizer::parse(j.dump());
  ASSERT_FALSE(t);
  EXPECT_EQ(t.error().message, "tokenizer.json: model.merges[453] makes \"<think>\", which is not in the vocabulary");
}

TEST(TokenizerJson, BrokenFilesAreNamed) {
  EXPECT_FALSE(Tokenizer::parse(""));
  const std::string text = tiny_json().dump();
  for (size_t n = 0; n < text.size(); n += 97) EXPECT_FALSE(Tokenizer::parse(std::string_view(text).substr(0, n)));
  const auto missing = Tokenizer::load(kData / "absent");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Error::Code::kNotFound);
  EXPECT_NE(missing.error().message.find("absent/tokenizer.json"), std::string::npos);
}

// The cases below need the vocabulary of Qwen3.6-35B-A3B, 11 MB: CALLA_REAL_TOKENIZER names a folder that holds its
// tokenizer.json.
class RealTokenizer : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (const char* dir = std::getenv("CALLA_REAL_TOKENIZER")) {
      real_ = std::make_unique<Result<Tokenizer>>(Tokenizer::load(dir));
      ASSERT_TRUE(*real_) << real_->error().message;
    }
  }
  static void TearDownTestSuite() { real_.reset(); }
  void SetUp() override {
    if (!real_)
      GTEST_SKIP() << "SKIPPED: set CALLA_REAL_TOKENIZER to a folder with the tokenizer.json of Qwen3.6-35B-A3B";
    ASSERT_TRUE(*real_);
  }
  static inline std::unique_ptr<Result<Tokenizer>> real_;
};

TEST_F(RealTokenizer, Cases) {
  const json cases = json::parse(*read_file(kData / "qwen36_cases.json"))["cases"];
  EXPECT_EQ(cases.size(), 35u);
  for (const json& c : cases) {
    EXPECT_EQ((*real_)->encode_official(c["text"].get<std::string>()), c["ids"].get<Ids>()) << c["text"];
  }
}

TEST_F(RealTokenizer, ControlTokens) {
  const Tokenizer& t = **real_;
  EXPECT_EQ(t.size(), 248077);
  EXPECT_EQ(t.control_id("<|endoftext|>"), 248044);
  EXPECT_EQ(t.control_id("<|im_end|>"), 248046);
  for (int32_t id = 248044; id < 248077; ++id) {
    EXPECT_TRUE(t.is_control(id));
    EXPECT_EQ(t.is_special(id), id < 248058 || id > 248069) << id;
    EXPECT_EQ(t.control_id(t.bytes(id)), id);
  }
  EXPECT_EQ(t.bytes(248077), "");
}

TEST_F(RealTokenizer, RoundTrip) {
  EXPECT_TRUE(rc::check([] {
    const std::string text = hostile_text();
    RC_ASSERT(bytes(**real_, encode(**real_, text)) == nfc(repair_utf8(text)));
  }));
}

}  // namespace
}  // namespace calla
