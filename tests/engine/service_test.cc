#include "engine/service.h"

#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/random.h"
#include "tests/engine/fake.h"
#include "tests/engine/sinks.h"
#include "text/answer_parser.h"
#include "text/chat_json.h"

namespace calla {
namespace {

using namespace fake;  // NOLINT

std::unique_ptr<Model> open_bud(int context = 1024, int sequences = 4) {
  RunnerOptions options;
  options.context = context;
  options.sequences = sequences;
  auto model = Model::open(CALLA_SOURCE_DIR "/models/bud", options);
  EXPECT_TRUE(model) << model.error().message;
  return std::move(*model);
}

ServiceRequest request_of(std::vector<int32_t> prompt, int max_tokens = 0) {
  ServiceRequest r;
  r.prompt = std::move(prompt);
  r.options.sampling.temperature = 0;
  r.options.max_tokens = max_tokens;
  return r;
}

std::vector<int32_t> ask(const Model& model, std::string user) {
  Conversation c;
  c.thinking = false;
  c.messages.push_back(text_message(ChatRole::kUser, std::move(user)));
  return model.encode(c).value();
}

std::shared_ptr<CollectingSink> submit(Service& service, ServiceRequest request, uint64_t* ticket = nullptr) {
  auto sink = std::make_shared<CollectingSink>();
  const auto result = service.submit(std::move(request), sink);
  EXPECT_TRUE(result) << result.error().message;
  if (result && ticket != nullptr) *ticket = *result;
  return sink;
}

Generation answer(Service& service, ServiceRequest request) {
  auto result = submit(service, std::move(request))->wait();
  EXPECT_TRUE(result) << result.error().message;
  return result ? std::move(*result) : Generation{};
}

// Up to rounding, which depends on how many tokens a pass has (docs/numerics.md): where the two best tokens are nearly
// equal, the answers may part.
TEST(Service, ManyAtOnceAnswerAsEachAlone) {
  const auto model = open_bud();
  const std::vector<std::string> questions = {"What is the capital of France?", "What is 12 plus 30?",
                                              "Tell me a story about a fox.",   "Who are you?",
                                              "What colour is the sky?",        "Tell me about a red kite."};
  const auto request = [&](const std::string& question) {
    ServiceRequest r = request_of(ask(*model, question), 60);
    r.options.sampling.logprobs = 2;
    return r;
  };
  std::vector<Generation> alone;
  for (const auto& q : questions) {
    auto sequence = model->runner().start();
    const ServiceRequest r = request(q);
    alone.push_back(generate(*model, **sequence, r.prompt, r.options).value());
  }
  auto service = Service::start(*model, {.running = 4}).value();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const auto& q : questions) sinks.push_back(submit(*service, request(q)));
  size_t same = 0;
  for (size_t i = 0; i < questions.size(); ++i) {
    const auto g = sinks[i]->wait();
    ASSERT_TRUE(g) << g.error().message;
    for (size_t k = 0; k < alone[i].tokens.size(); ++k, ++same) {
      const Sampled &one = alone[i].tokens[k], &many = g->tokens.at(k);
      EXPECT_NEAR(one.logprob, many.logprob, 0.1) << questions[i];
      if (one.id == many.id) continue;
      EXPECT_LT(one.top[0].logprob - one.top[1].logprob, 0.1) << questions[i];
      break;
    }
  }
  EXPECT_GT(same, 100u);
}

TEST(Service, RefusesWhatCanNeverRun) {
  FakeModel fake = make_model(says(2, bytes("hi")), 64);
  auto service = Service::start(*fake.model, {}).value();
  const auto refused = [&](ServiceRequest r) {
    const auto result = service->submit(std::move(r), std::make_shared<CollectingSink>());
    return result ? std::string() : result.error().message;
  };
  EXPECT_NE(refused(request_of({})).find("empty"), std::string::npos);
  EXPECT_NE(refused(request_of(std::vector<int32_t>(65, 'a'))).find("65 tokens"), std::string::npos);
  EXPECT_NE(refused(request_of({1, kVocab})).find("320"), std::string::npos);
  ServiceRequest bad = request_of(bytes("go"));
  bad.options.sampling.top_p = 2;
  EXPECT_NE(refused(std::move(bad)).find("top_p"), std::string::npos);
  EXPECT_FALSE(Service::start(*fake.model, {.running = 0}));
  EXPECT_FALSE(Service::start(*fake.model, {.shared_chunk = 0}));
  EXPECT_EQ(answer(*service, request_of(bytes("go"))).text, "hi") << "and still works";
}

// Ten pages for all: snapshots make room for what runs, requests wait for one another, cancelled ones included, and
// nothing is lost.
TEST(Service, FewPagesAreEnough) {
  const auto model = open_bud(256, 2);
  Random random(9);
  for (const uint64_t snapshot_bytes : {uint64_t{1} << 30, uint64_t{0}}) {
    auto service = Service::start(*model, {.running = 4, .snapshot_bytes = snapshot_bytes}).value();
    std::vector<std::pair<std::shared_ptr<CollectingSink>, int>> sinks;  // and its most tokens; 0: cancelled
    for (int i = 0; i < 60; ++i) {
      std::vector<int32_t> prompt(20 + random.below(200), static_cast<int32_t>(random.below(20)));
      const int most = 1 + static_cast<int>(random.below(30));
      ServiceRequest r = request_of(std::move(prompt), most);
      r.options.ignore_eos = true;
      uint64_t ticket = 0;
      auto sink = submit(*service, std::move(r), &ticket);
      if (i % 5 == 0) service->cancel(ticket);
      sinks.emplace_back(std::move(sink), i % 5 == 0 ? 0 : most);
    }
    for (auto& [sink, most] : sinks) {
      const auto g = sink->wait();
      ASSERT_TRUE(g) << g.error().message;
      if (most > 0) {
        EXPECT_EQ(static_cast<int>(g->tokens.size()), most);
      }
    }
    service->stop(true);
    const ServiceStats stats = service->stats();
    EXPECT_EQ(stats.finished + stats.cancelled, 60u);
    EXPECT_GE(stats.finished, 48u);
    EXPECT_EQ(stats.running + stats.queued, 0);
    EXPECT_EQ(stats.snapshots > 0, snapshot_bytes > 0);
    EXPECT_EQ(model->runner().pages().used > 0, snapshot_bytes > 0) << "held by snapshots only";
    EXPECT_LE(model->runner().pages().used, model->runner().pages().limit);
  }
  EXPECT_EQ(model->runner().pages().used, 0);
}

// The fake model waits in `gate` while it computes.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  int passed = 0;
  void pass() {
    std::unique_lock lock(mutex);
    ++passed;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
  }
  void reached() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return passed > 0; });
  }
  void let_go() {
    const std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }
};

TEST(Service, AFullQueueIsBusyAndTheDeadAreSkipped) {
  Gate gate;
  FakeModel fake = make_model([&](const std::vector<int32_t>&) {
    gate.pass();
    return kImEnd;
  });
  auto service = Service::start(*fake.model, {.running = 1, .queue = 2}).value();
  auto first = submit(*service, request_of(bytes("go")));
  gate.reached();
  auto dead = std::make_shared<CollectingSink>();
  dead->wanted_ = false;
  ASSERT_TRUE(service->submit(request_of(bytes("go")), dead));
  uint64_t ticket = 0;
  auto cancelled = submit(*service, request_of(bytes("go")), &ticket);
  const auto busy = service->submit(request_of(bytes("go")), std::make_shared<CollectingSink>());
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code, Error::Code::kBusy);
  EXPECT_EQ(service->stats().queued, 2);
  service->cancel(ticket);
  gate.let_go();
  EXPECT_EQ(first->wait()->finish, FinishReason::kStopToken);
  EXPECT_EQ(dead->wait()->finish, FinishReason::kCancelled);
  EXPECT_EQ(cancelled->wait()->finish, FinishReason::kCancelled);
  EXPECT_EQ(fake.runner->read, 2) << "neither was read";
  const ServiceStats stats = service->stats();
  EXPECT_EQ(stats.requests, 3u);
  EXPECT_EQ(stats.refused, 1u);
  EXPECT_EQ(stats.cancelled, 2u);
  EXPECT_EQ(stats.finished, 1u);
}

TEST(Service, StopFinishesOrCancelsWhatRuns) {
  for (const bool finish : {true, false}) {
    Gate gate;
    FakeModel fake = make_model([&](const std::vector<int32_t>& tokens) -> int32_t {
      gate.pass();
      return tokens.size() < 10 ? 'a' : kImEnd;
    });
    auto service = Service::start(*fake.model, {.running = 1, .queue = 1}).value();
    auto runs = submit(*service, request_of(bytes("go")));
    gate.reached();
    auto waits = submit(*service, request_of(bytes("go")));
    std::thread stopping([&] { service->stop(finish); });
    const auto stops = [&] {  // the queue is full, and then that is not the reason any more
      const auto result = service->submit(request_of(bytes("go")), std::make_shared<CollectingSink>());
      return result.error().message.find("shutting down") != std::string::npos;
    };
    while (!stops()) std::this_thread::yield();
    gate.let_go();
    stopping.join();
    EXPECT_EQ(runs->wait()->finish, finish ? FinishReason::kStopToken : FinishReason::kCancelled);
    EXPECT_EQ(waits->wait()->finish, FinishReason::kCancelled);
  }
}

TEST(Service, AnAnswerIsCancelledBetweenPasses) {
  FakeModel fake = make_model([](const std::vector<int32_t>&) { return 'a'; });
  auto service = Service::start(*fake.model, {}).value();
  uint64_t ticket = 0;
  std::mutex mutex;
  int tokens = 0;
  auto sink = std::make_shared<CollectingSink>([&](const Delta& d) {
    const std::lock_guard lock(mutex);
    if (d.token != nullptr && ++tokens == 5) service->cancel(ticket);
  });
  {
    const std::lock_guard lock(mutex);
    ticket = service->submit(request_of(bytes("go")), sink).value();
  }
  const auto g = sink->wait();
  EXPECT_EQ(g->finish, FinishReason::kCancelled);
  EXPECT_EQ(g->text, "aaaaa");
}

// Reasoning is closed where its budget ends, again in a second block, and always early enough for an answer.
TEST(Service, ReasoningLeavesRoomForAnAnswer) {
  const auto thinks = [](int budget, int max_tokens) {
    FakeModel fake = make_model([](const std::vector<int32_t>& tokens) -> int32_t {
      const auto block = std::find(tokens.rbegin(), tokens.rend(), kEndThink);
      if (block == tokens.rend()) return 't';
      const auto since = block - tokens.rbegin();
      return since == 4 ? kThink : since > 4 ? 'u' : 'x';
    });
    auto service = Service::start(*fake.model, {}).value();
    ServiceRequest r = request_of(bytes("go"), max_tokens);
    r.in_reasoning = true;
    r.thinking_budget = budget;
    return answer(*service, std::move(r));
  };
  EXPECT_EQ(thinks(3, 40).text.substr(0, 46), "ttt\n</think>\n\nxx<think>uuu\n</think>\n\nxx<think>");
  EXPECT_EQ(thinks(3, 10).reasoning_tokens, 5) << "ttt, the line end, </think>";
  EXPECT_EQ(thinks(0, 8).text, "\n</think>\n\nxx<think>\n");
  const Generation room = thinks(-1, 40);
  EXPECT_EQ(room.text.substr(0, 30), std::string(26, 't') + "\n</t");
  EXPECT_EQ(room.finish, FinishReason::kLength);
}

// The same question again costs nothing, and one that shares its beginning only what differs.
TEST(Service, StartsFromTheDeepestSnapshot) {
  FakeModel fake = make_model([](const std::vector<int32_t>& tokens) { return tokens.back() == 'b' ? kImEnd : 'b'; });
  std::vector<std::string> log;
  auto service =
      Service::start(*fake.model, {.log = [&](std::string line) { log.push_back(std::move(line)); }}).value();
  ServiceRequest r = request_of(bytes(std::string(100, 's') + "| one question here"));
  r.boundaries = {101};
  EXPECT_EQ(answer(*service, r).reused_tokens, 0);
  fake.runner->read = 0;
  const Generation again = answer(*service, r);
  EXPECT_EQ(again.reused_tokens, 119);
  EXPECT_EQ(again.text, "b");
  EXPECT_EQ(fake.runner->read, 1) << "only the answer's token";

  r.prompt = bytes(std::string(100, 's') + "| two questions here");
  EXPECT_EQ(answer(*service, r).reused_tokens, 101);
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("at token 102 of 120, after \"sssss"), std::string::npos) << log[0];
  EXPECT_NE(log[0].find("now \"two questions he\", then \"one question her\""), std::string::npos) << log[0];

  // The next turn starts from the end of the answer.
  r.prompt = bytes(std::string(100, 's') + "| two questions hereb and more");
  EXPECT_EQ(answer(*service, r).reused_tokens, 121);
  // Where nobody said that prompts part, the second of them learns it.
  r.boundaries = {};
  const auto reused = [&](char c) {
    r.prompt = bytes(std::string(50, 'x') + std::string(30, c));
    return answer(*service, r).reused_tokens;
  };
  EXPECT_EQ(reused('1'), 0);
  EXPECT_EQ(reused('2'), 0);
  EXPECT_EQ(reused('3'), 50);
}

TEST(Service, APromptWaitsForOneThatSharesItsBeginning) {
  Gate gate;
  FakeModel fake = make_model([&](const std::vector<int32_t>& tokens) -> int32_t {
    if (tokens.size() < 4) gate.pass();
    return kImEnd;
  });
  auto service = Service::start(*fake.model, {.running = 8}).value();
  auto first = submit(*service, request_of(bytes("go")));
  gate.reached();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 5; ++i) sinks.push_back(submit(*service, request_of(std::vector<int32_t>(500, 'a'))));
  gate.let_go();
  int reused = 0;
  for (auto& sink : sinks) reused += sink->wait()->reused_tokens;
  EXPECT_EQ(reused, 4 * 500);
  EXPECT_EQ(fake.runner->read, 2 + 500);
}

TEST(Service, ACancelledPromptIsResumed) {
  FakeModel fake = make_model([](const std::vector<int32_t>&) { return kImEnd; }, 4096, 64);
  auto service = Service::start(*fake.model, {}).value();
  uint64_t ticket = 0;
  std::mutex mutex;
  struct Cancelling final : AnswerSink {
    std::function<void(int)> read;
    std::function<void(Result<Generation>)> done;
    void on_prompt(int n, int, int) override { read(n); }
    void on_delta(const Delta&) override {}
    void on_done(Result<Generation> g) override { done(std::move(g)); }
  };
  auto sink = std::make_shared<Cancelling>();
  auto collected = std::make_shared<CollectingSink>();
  sink->read = [&](int n) {
    const std::lock_guard lock(mutex);
    if (n == 128) service->cancel(ticket);
  };
  sink->done = [&](Result<Generation> g) { collected->on_done(std::move(g)); };
  {
    const std::lock_guard lock(mutex);
    ticket = service->submit(request_of(std::vector<int32_t>(1000, 'a')), sink).value();
  }
  EXPECT_EQ(collected->wait()->finish, FinishReason::kCancelled);
  EXPECT_EQ(fake.runner->read, 128) << "it ends before the next pass";
  EXPECT_EQ(answer(*service, request_of(std::vector<int32_t>(1000, 'a'))).reused_tokens, 128);
  EXPECT_EQ(fake.runner->read, 1000);
}

// What a pass brought is passed on before the next one; the end of an answer passes itself on.
TEST(Service, FlushesAfterEachPass) {
  FakeModel fake = make_model([](const std::vector<int32_t>&) { return 'x'; }, 4096, 64);
  auto service = Service::start(*fake.model, {}).value();
  struct Logging final : AnswerSink {
    std::string log;
    std::promise<void> ended;
    void on_prompt(int, int, int) override { log += 'p'; }
    void on_delta(const Delta&) override { log += 'd'; }
    void flush() override { log += '.'; }
    void on_done(Result<Generation>) override {
      log += '!';
      ended.set_value();
    }
  };
  auto sink = std::make_shared<Logging>();
  ASSERT_TRUE(service->submit(request_of(std::vector<int32_t>(100, 'a'), 3), sink));
  sink->ended.get_future().wait();
  service->stop(false);
  EXPECT_EQ(sink->log, "pp.pd.d.dd!") << "the prompt begins, two passes read it; the last delta is the text's rest";
}

// The reference does not round, whatever passes a token shares: so what was restored, forked, shared or cut short must
// give every later answer as if nothing had been before it.
TEST(Service, AnswersAfterForksAndCancelsAreThoseOfAColdRun) {
  RunnerOptions options;
  options.backend = RunnerOptions::Backend::kReference;
  options.context = 512;
  options.sequences = 16;
  options.chunk = 32;
  const auto open = [&] {
    auto runner = open_runner(CALLA_SOURCE_DIR "/tests/goldens/rand-mlx4", options);
    EXPECT_TRUE(runner) << runner.error().message;
    return Model(
        {"random", byte_tokenizer(false), ChatTemplate(ChatTemplate::Version::kQwen36), {}, {}, *std::move(runner)});
  };
  Model model = open(), cold_model = open();
  const uint64_t state = model.runner().state_bytes();
  // So few snapshots that they come and go.
  auto service =
      Service::start(model, {.running = 4, .shared_chunk = 16, .snapshot_bytes = 8 * state + 64 * 1024}).value();
  Random random(7);
  const auto below = [&](int n) { return static_cast<int>(random.below(n)); };
  struct Asked {
    ServiceRequest request;
    std::shared_ptr<CollectingSink> sink;
  };
  std::vector<Asked> asked;
  std::vector<std::vector<int32_t>> paths = {{}};  // prompts with their answers
  for (int round = 0; round < 10; ++round) {
    std::vector<Asked> together;
    for (int i = 0; i < 6; ++i) {
      // Goes on from the end of a recent path, or from anywhere on it.
      const size_t recent = std::min<size_t>(paths.size(), 12);
      std::vector<int32_t> prompt = paths[paths.size() - 1 - below(static_cast<int>(recent))];
      if (prompt.size() > 150) prompt.resize(100);
      if (below(3) == 0) prompt.resize(below(static_cast<int>(prompt.size()) + 1));
      for (int n = 1 + below(40); n > 0; --n) prompt.push_back(below(256));
      ServiceRequest r = request_of(std::move(prompt), 1 + below(12));
      for (int at = below(60); at < static_cast<int>(r.prompt.size()); at += 1 + below(60)) r.boundaries.push_back(at);
      std::erase(r.boundaries, 0);
      r.side = below(4) == 0;
      r.options.sampling.logprobs = 0;
      uint64_t ticket = 0;
      auto sink = submit(*service, r, &ticket);
      if (below(4) == 0) {
        if (below(2) == 0) sink->wait_for_prompt();
        service->cancel(ticket);
      }
      together.push_back({std::move(r), std::move(sink)});
    }
    for (Asked& a : together) {
      const auto g = a.sink->wait();
      ASSERT_TRUE(g) << g.error().message;
      paths.push_back(a.request.prompt);
      for (const Sampled& t : g->tokens) paths.back().push_back(t.id);
      asked.push_back(std::move(a));
    }
  }
  int finished = 0, cancelled = 0, restored = 0;
  for (const Asked& a : asked) {
    const Generation warm = a.sink->wait().value();
    (warm.finish == FinishReason::kCancelled ? cancelled : finished)++;
    restored += warm.reused_tokens > 0;
    if (warm.tokens.empty()) continue;
    auto sequence = cold_model.runner().start();
    const Generation cold = generate(cold_model, **sequence, a.request.prompt, a.request.options).value();
    for (size_t i = 0; i < warm.tokens.size(); ++i) {
      ASSERT_EQ(warm.tokens[i].id, cold.tokens.at(i).id) << "token " << i << " after " << warm.reused_tokens << " of "
                                                         << a.request.prompt.size() << " from a snapshot";
      ASSERT_NEAR(warm.tokens[i].logprob, cold.tokens[i].logprob, 1e-5);
    }
  }
  EXPECT_GT(finished, 35);
  EXPECT_GT(cancelled, 3);
  EXPECT_GT(restored, 20);
}

// A long prompt holds a stream up by one chunk at most, and short prompts go first.
TEST(Service, LongPromptsComeInChunksBetweenTheTokens) {
  std::mutex mutex;
  std::vector<size_t> lengths;  // of the sequences that a row of logits was asked for
  FakeModel fake = make_model(
      [&](const std::vector<int32_t>& tokens) -> int32_t {
        const std::lock_guard lock(mutex);
        lengths.push_back(tokens.size());
        return tokens.size() < 100 ? 'a' : kImEnd;
      },
      4096, 512);
  auto service = Service::start(*fake.model, {.running = 8, .shared_chunk = 32}).value();
  std::vector<int> gaps;  // tokens read between two of the stream's
  std::atomic<bool> streaming = false;
  int before = 0;
  auto stream = std::make_shared<CollectingSink>([&](const Delta& d) {
    if (d.token == nullptr) return;
    gaps.push_back(fake.runner->read - before);
    before = fake.runner->read;
    streaming = true;
  });
  ASSERT_TRUE(service->submit(request_of(bytes("go")), stream));
  while (!streaming) std::this_thread::yield();
  auto lengthy = submit(*service, request_of(std::vector<int32_t>(1500, 'b')));
  auto brief = submit(*service, request_of(std::vector<int32_t>(150, 'c')));
  stream->wait();
  lengthy->wait();
  brief->wait();
  EXPECT_LE(*std::ranges::max_element(gaps), 1 + 32);
  const auto when = [&](size_t length) { return std::ranges::find(lengths, length) - lengths.begin(); };
  EXPECT_LT(when(150), when(1500));
}

// Bud is asked to do something else, at a high temperature, and still gives what the grammar says, after its reasoning.
TEST(Service, AGrammarHoldsAfterTheReasoning) {
  const auto model = open_bud();
  const auto vocabulary = std::make_shared<const GrammarVocabulary>(
      GrammarVocabulary::build(model->tokenizer(), model->stop_ids()).value());
  const auto schema = parse_json(
      R"({"type": "object", "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}}, "required": ["n", "ok"],
          "additionalProperties": false})");
  const auto document = Grammar::json_schema(vocabulary, *schema).value();
  const GrammarTool tool{"look", &*schema};
  const auto call = Grammar::tool_calls(vocabulary, {&tool, 1}, false).value();
  const auto types = std::make_shared<ToolTypes>(std::vector<std::string>{
      R"({"type": "function", "function": {"name": "look", "parameters": )" + schema->dump() + "}}"});
  auto service = Service::start(*model, {}).value();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 24; ++i) {
    Conversation c;
    c.thinking = i % 2 == 0;
    c.messages.push_back(text_message(ChatRole::kUser, "Tell me a story."));
    ServiceRequest r = request_of(model->encode(c).value(), 400);
    r.options.sampling.temperature = 1.5f;
    r.options.sampling.seed = i;
    r.in_reasoning = *c.thinking;
    r.thinking_budget = i % 4 == 0 ? 20 : -1;
    r.grammar = i % 3 == 0 ? call : document;
    sinks.push_back(submit(*service, std::move(r)));
  }
  for (int i = 0; i < 24; ++i) {
    const auto g = sinks[i]->wait();
    ASSERT_TRUE(g) << g.error().message;
    EXPECT_EQ(g->finish, FinishReason::kStopToken) << g->text;
    AnswerParser parser(i % 2 == 0, types);
    std::vector<AnswerEvent> events;
    parser.push(g->text, events);
    parser.finish(events);
    std::string text, arguments;
    for (const AnswerEvent& e : events) {
      if (e.kind == AnswerEvent::Kind::kText) text += e.text;
      if (e.kind == AnswerEvent::Kind::kCallArguments) arguments += e.text;
    }
    EXPECT_EQ(parser.calls(), i % 3 == 0 ? 1 : 0) << g->text;
    const auto json = parse_json(i % 3 == 0 ? arguments : text);
    ASSERT_TRUE(json) << g->text;
    EXPECT_TRUE(json->at("n").is_number_integer() && json->at("ok").is_boolean()) << g->text;
    EXPECT_EQ(i % 3 == 0 ? text : arguments, "");
    EXPECT_EQ(g->reasoning_tokens > 0, i % 2 == 0);
    if (i % 4 == 0) {
      EXPECT_LE(g->reasoning_tokens, 22) << g->text;
    }
  }
}

}  // namespace
}  // namespace calla
