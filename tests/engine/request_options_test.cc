#include "engine/request_options.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

GenerateOptions read(const char* text) {
  GenerateOptions o;
  const auto result = read_options(Json::parse(text), o);
  EXPECT_TRUE(result) << result.error().message;
  return o;
}

std::string error(const char* text) {
  GenerateOptions o;
  const auto result = read_options(Json::parse(text), o);
  return result ? "" : result.error().message;
}

TEST(RequestOptions, ReadsEveryField) {
  const GenerateOptions o = read(
      R"({"temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"presence_penalty":1.5,"frequency_penalty":-0.5,"repetition_penalty":1.1,
          "seed":-3,"logit_bias":{"12":-100,"5":1.5},"max_tokens":9,"stop":["a","b"],"logprobs":true,"top_logprobs":4,"messages":[],
          "ignore_eos":true})");
  EXPECT_EQ(o.sampling.temperature, 0.5f);
  EXPECT_EQ(o.sampling.top_p, 0.9f);
  EXPECT_EQ(o.sampling.top_k, 7);
  EXPECT_EQ(o.sampling.min_p, 0.1f);
  EXPECT_EQ(o.sampling.presence_penalty, 1.5f);
  EXPECT_EQ(o.sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(o.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(o.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(o.sampling.bias, (std::vector<std::pair<int32_t, float>>{{12, -100.0f}, {5, 1.5f}}));
  EXPECT_EQ(o.max_tokens, 9);
  EXPECT_EQ(o.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(o.sampling.logprobs, 4);
  EXPECT_TRUE(o.ignore_eos);
}

TEST(RequestOptions, NullAndAbsentKeepTheDefaults) {
  const GenerateOptions o =
      read(R"({"temperature":null,"stop":null,"max_tokens":null,"logprobs":false,"top_logprobs":3,"unknown":{}})");
  EXPECT_EQ(o.sampling.temperature, 1.0f);
  EXPECT_EQ(o.sampling.logprobs, -1);
  EXPECT_EQ(read(R"({"stop":"x"})").stop, std::vector<std::string>{"x"});
  EXPECT_EQ(read(R"({"top_k":-1})").sampling.top_k, 0);
  EXPECT_EQ(read(R"({"max_completion_tokens":5})").max_tokens, 5);
  EXPECT_EQ(read(R"({"seed":18446744073709551615})").sampling.seed, ~uint64_t{0});
  // The number itself, as in completions; or only top_logprobs, as in responses.
  EXPECT_EQ(read(R"({"logprobs":2})").sampling.logprobs, 2);
  EXPECT_EQ(read(R"({"top_logprobs":3})").sampling.logprobs, 3);
}

TEST(RequestOptions, ErrorsNameTheField) {
  for (const char* text :
       {R"({"temperature":"hot"})", R"({"top_k":1.5})", R"({"top_k":99999999999})", R"({"seed":1.5})",
        R"({"max_tokens":-7})", R"({"stop":3})", R"({"stop":["a",3]})", R"({"logit_bias":[]})",
        R"({"logit_bias":{"x":1}})", R"({"logit_bias":{"1":"x"}})", R"({"ignore_eos":1})", R"({"logprobs":"2"})"}) {
    const std::string field = std::string(text).substr(2, std::string(text).find('"', 2) - 2);
    EXPECT_EQ(error(text).rfind(field, 0), 0u) << text << " → " << error(text);
  }
  EXPECT_NE(error("[]"), "");
}

}  // namespace
}  // namespace calla
