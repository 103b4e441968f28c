#include "engine/service.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/fake.h"
#include "tests/engine/sinks.h"

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

std::vector<int32_t> ids(const Generation& g) {
  std::vector<int32_t> out;
  for (const Sampled& t : g.tokens) out.push_back(t.id);
  return out;
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

TEST(Service, ManyAtOnceAnswerAsEachAlone) {
  const auto model = open_bud();
  const std::vector<std::string> questions = {"What is the capital of France?", "What is 12 plus 30?",
                                              "Tell me a story about a fox.",   "Who are you?",
                                              "What colour is the sky?",        "Tell me about a red kite."};
  std::vector<std::vector<int32_t>> alone;
  for (const auto& q : questions) {
    auto sequence = model->runner().start();
    GenerateOptions options;
    options.sampling.temperature = 0;
    options.max_tokens = 60;
    alone.push_back(ids(generate(*model, **sequence, ask(*model, q), options).value()));
  }
  auto service = Service::start(*model, {.running = 4}).value();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const auto& q : questions) sinks.push_back(submit(*service, request_of(ask(*model, q), 60)));
  for (size_t i = 0; i < questions.size(); ++i) {
    const auto g = sinks[i]->wait();
    ASSERT_TRUE(g) << g.error().message;
    EXPECT_EQ(ids(*g), alone[i]) << questions[i];
  }
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
  EXPECT_EQ(answer(*service, request_of(bytes("go"))).text, "hi") << "and still works";
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
    auto service = Service::start(*fake.model, {.running = 1}).value();
    auto runs = submit(*service, request_of(bytes("go")));
    auto waits = submit(*service, request_of(bytes("go")));
    gate.reached();
    std::thread stopping([&] { service->stop(finish); });
    while (service->submit(request_of(bytes("go")), std::make_shared<CollectingSink>())) std::this_thread::yield();
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

}  // namespace
}  // namespace calla
