// The service on Bud: what agents' requests reuse, and that what is reused answers as if nothing had been.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/answer_memory.h"
#include "engine/service.h"
#include "tests/engine/sinks.h"
#include "text/answer_parser.h"
#include "text/chat_request.h"

namespace calla {
namespace {

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.",
         "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
        {"type": "function", "function": {"name": "get_time", "description": "The time in a city.",
         "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])";

std::unique_ptr<Model> open_bud() {
  RunnerOptions options;
  options.context = 1024;
  options.sequences = 8;
  auto model = Model::open(CALLA_SOURCE_DIR "/models/bud", options);
  EXPECT_TRUE(model) << model.error().message;
  return std::move(*model);
}

struct Asked {
  ChatPrompt prompt;
  Generation answer;
  std::vector<int> passes;  // where each pass ended that led to the end of the answer, whoever ran it
  std::vector<int32_t> path() const {
    std::vector<int32_t> all = prompt.ids;
    for (const Sampled& t : answer.tokens) all.push_back(t.id);
    return all;
  }
};

class ServiceOnBud : public testing::Test {
 protected:
  Conversation conversation(const std::string& messages, bool thinking) const {
    auto c = parse_conversation(std::string(R"({"tools": )") + tools_ + R"(, "messages": [)" + messages + "]}");
    EXPECT_TRUE(c) << c.error().message;
    c->thinking = thinking;
    return std::move(*c);
  }
  static Generation run(Service& service, const ChatPrompt& prompt, std::vector<int>* passes = nullptr) {
    ServiceRequest r;
    r.prompt = prompt.ids;
    r.boundaries = prompt.boundaries;
    r.in_reasoning = prompt.in_reasoning;
    r.options.sampling.temperature = 0;
    r.options.sampling.logprobs = 3;
    r.options.max_tokens = 40;
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(service.submit(std::move(r), sink));
    auto g = sink->wait();
    EXPECT_TRUE(g) << g.error().message;
    if (passes != nullptr) {
      for (const auto& p : sink->prompt()) passes->push_back(p.done);
    }
    return g ? std::move(*g) : Generation{};
  }
  Asked ask(const std::string& messages, bool thinking) {
    const Conversation c = conversation(messages, thinking);
    Asked out{encode_chat(*model_, c, memory_).value(), {}, {}};
    std::vector<int> read;
    out.answer = run(*service_, out.prompt, &read);
    memory_.remember(*model_, out.prompt.ids, out.answer, std::make_shared<ToolTypes>(c.tools));
    out.passes = passes_to(out);
    out.passes.insert(out.passes.end(), read.begin() + 1, read.end());
    for (size_t i = 1; i < out.answer.tokens.size(); ++i) {
      out.passes.push_back(static_cast<int>(out.prompt.ids.size() + i));
    }
    expect_same_as_without_snapshots(out);
    // A service that knows nothing reads what was decoded before in longer passes, which round activations otherwise.
    const Generation cold = run(*Service::start(*cold_model_, {}).value(), out.prompt);
    EXPECT_EQ(cold.reused_tokens, 0);
    EXPECT_EQ(cold.text, out.answer.text);
    for (size_t i = 0; i < std::min(cold.tokens.size(), out.answer.tokens.size()); ++i) {
      worst_ = std::max(worst_, std::abs(cold.tokens[i].logprob - out.answer.tokens[i].logprob));
    }
    asked_.push_back(out);
    return out;
  }

  // The passes that led to the snapshot from which this answer started.
  std::vector<int> passes_to(const Asked& asked) {
    const int reused = asked.answer.reused_tokens;
    if (reused == 0) return {};
    for (auto it = asked_.rbegin(); it != asked_.rend(); ++it) {
      const auto path = it->path();
      const auto end = std::ranges::find(it->passes, reused);
      if (end == it->passes.end() || !std::equal(path.begin(), path.begin() + reused, asked.prompt.ids.begin()))
        continue;
      return {it->passes.begin(), end + 1};
    }
    ADD_FAILURE() << "no pass of an earlier answer ended at " << reused;
    return {};
  }

  // The same passes, one after another on one sequence, give the same bits.
  void expect_same_as_without_snapshots(const Asked& asked) {
    auto sequence = cold_model_->runner().start().value();
    const std::vector<int32_t> path = asked.path();
    SamplingParams greedy;
    greedy.temperature = 0;
    greedy.logprobs = 3;
    Sampler sampler(greedy, cold_model_->tokenizer().size(), asked.prompt.ids);
    std::vector<float> logits;
    size_t answered = 0;
    for (const int end : asked.passes) {
      const int begin = sequence->position();
      const Step step{sequence.get(), std::span(path).subspan(begin, end - begin)};
      ASSERT_TRUE(cold_model_->runner().forward({&step, 1}, logits));
      if (end < static_cast<int>(asked.prompt.ids.size())) continue;
      const Sampled token = sampler.sample(logits).value(), &ours = asked.answer.tokens[answered++];
      ASSERT_EQ(token.id, ours.id);
      ASSERT_EQ(token.logprob, ours.logprob);
      for (size_t i = 0; i < token.top.size(); ++i) ASSERT_EQ(token.top[i].logprob, ours.top[i].logprob);
    }
    EXPECT_EQ(answered, asked.answer.tokens.size());
  }

  std::string tools_ = kTools;
  std::unique_ptr<Model> model_ = open_bud(), cold_model_ = open_bud();
  AnswerMemory memory_;
  std::unique_ptr<Service> service_ = Service::start(*model_, {}).value();
  std::vector<Asked> asked_;
  float worst_ = 0;
};

int shared(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<int>(std::ranges::mismatch(a, b).in1 - a.begin());
}

constexpr const char* kSystem = R"({"role": "system", "content": "You are a helpful assistant. Be brief."}, )";
const std::string kQuestion =
    std::string(kSystem) +
    R"({"role": "user", "content": "What is the weather in Paris, and what time is it in Rome?"})";
const std::string kResults = R"(, {"role": "tool", "content": "Sunny."}, {"role": "tool", "content": "It is noon."})";

// The answer as a message of the next request, as a client would send it.
std::string echo(const Asked& asked, const Conversation& c, bool with_reasoning) {
  AnswerParser parser(asked.prompt.in_reasoning, std::make_shared<ToolTypes>(c.tools));
  std::vector<AnswerEvent> events;
  parser.push(asked.answer.text, events);
  parser.finish(events);
  nlohmann::ordered_json m = {{"role", "assistant"}, {"content", ""}};
  std::string reasoning, content;
  for (const AnswerEvent& e : events) {
    if (e.kind == AnswerEvent::Kind::kReasoning) reasoning += e.text;
    if (e.kind == AnswerEvent::Kind::kText) content += e.text;
    if (e.kind == AnswerEvent::Kind::kCallBegin) {
      m["tool_calls"].push_back({{"function", {{"name", e.text}, {"arguments", ""}}}});
    }
    if (e.kind == AnswerEvent::Kind::kCallArguments) {
      auto& arguments = m["tool_calls"].back()["function"]["arguments"];
      arguments = arguments.get<std::string>() + e.text;
    }
  }
  m["content"] = content;
  if (with_reasoning) m["reasoning_content"] = reasoning;
  return ", " + m.dump();
}

// Two turns of an agent, with and without thinking, by clients that echo the reasoning and that drop it.
TEST_F(ServiceOnBud, TheSecondTurnOfAnAgentReadsOnlyWhatIsNew) {
  for (const bool thinking : {false, true}) {
    for (const bool with_reasoning : {true, false}) {
      service_ = Service::start(*model_, {}).value();
      const Asked first = ask(kQuestion, thinking);
      const std::string answered = kQuestion + echo(first, conversation(kQuestion, thinking), with_reasoning);
      const Asked second = ask(answered + kResults, thinking);
      const int common = shared(first.path(), second.prompt.ids);
      EXPECT_GE(common, static_cast<int>(first.path().size()) - 1) << "all that was generated";
      EXPECT_GE(second.answer.reused_tokens, common - 1);
      // The user speaks again.
      const Asked third = ask(answered + kResults + echo(second, conversation(kQuestion, thinking), with_reasoning) +
                                  R"(, {"role": "user", "content": "Thank you."})",
                              thinking);
      const int known = std::max(shared(first.path(), third.prompt.ids), shared(second.path(), third.prompt.ids));
      EXPECT_GE(third.answer.reused_tokens, known - 1) << "thinking " << thinking;
    }
  }
  std::printf("largest difference of a log-probability from a cold run: %.2g\n", worst_);
  EXPECT_LT(worst_, 0.1);
}

TEST_F(ServiceOnBud, RegenerateEditAndOtherTools) {
  const Asked first = ask(kQuestion, false);
  EXPECT_EQ(ask(kQuestion, false).answer.reused_tokens, static_cast<int>(first.prompt.ids.size())) << "regenerate";

  // Another question after the same system and tools: all up to the header of the question, whose first word differs.
  const Asked edited = ask(std::string(kSystem) + R"({"role": "user", "content": "Tell me a story."})", false);
  const int common = shared(first.prompt.ids, edited.prompt.ids);
  EXPECT_GE(edited.answer.reused_tokens, common - 1);
  EXPECT_GT(common, 100);

  // The thinking switched: all but the last header's opening.
  const Asked thinks = ask(kQuestion, true);
  EXPECT_GE(thinks.answer.reused_tokens, first.prompt.boundaries.back());
  EXPECT_LE(shared(first.prompt.ids, thinks.prompt.ids) - thinks.answer.reused_tokens, 2);

  // Other tools change the prompt near its beginning. The second such prompt finds where the first two parted.
  tools_.replace(tools_.find("get_time"), 8, "get_date");
  const Asked other = ask(kQuestion, false);
  EXPECT_EQ(other.answer.reused_tokens, 0);
  const int parted = shared(first.prompt.ids, other.prompt.ids);
  tools_.replace(tools_.find("get_date"), 8, "get_rain");
  const Asked third = ask(kQuestion, false);
  EXPECT_GE(third.answer.reused_tokens, parted - 1);
  EXPECT_GT(parted, 30);
}

}  // namespace
}  // namespace calla
