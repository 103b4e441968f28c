#pragma once

// The APIs over a model without weights that says what a test wants.

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/session.h"
#include "tests/engine/fake.h"
#include "text/chat_json.h"

namespace calla::test {

using Json = nlohmann::ordered_json;

struct SseEvent {
  std::string name;  // "": none
  std::string data;
  Json json() const {
    const auto parsed = parse_json(data);
    EXPECT_TRUE(parsed) << data;
    return parsed ? *parsed : Json();
  }
};

// As the clients' own parsers read a stream.
inline std::vector<SseEvent> parse_sse(std::string_view bytes) {
  std::vector<SseEvent> out;
  SseEvent event;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    EXPECT_NE(end, bytes.npos) << "a line without its end";
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(bytes.size(), end == bytes.npos ? end : end + 1));
    if (line.empty()) {
      if (!event.data.empty()) out.push_back(std::exchange(event, {}));
    } else if (line.starts_with("data: ")) {
      event.data += line.substr(6);
    } else if (line.starts_with("event: ")) {
      event.name = line.substr(7);
    } else {
      ADD_FAILURE() << "a line that no server-sent event has: " << line;
    }
  }
  EXPECT_TRUE(event.data.empty()) << "an event without its end";
  return out;
}

class TestOutput final : public ApiOutput {
 public:
  explicit TestOutput(int writes = -1) : writes_(writes) {}

  void accept(bool stream) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(accepted || ended) << "accept out of order";
    accepted = true;
    streams = stream;
  }
  bool write(std::string_view events) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(accepted && streams && !ended) << "write out of order";
    EXPECT_TRUE(events.ends_with("\n\n"));
    bytes += events;
    changed_.notify_all();
    return writes_ < 0 || writes_-- > 0;
  }
  void finish() override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(accepted && streams && !ended) << "finish out of order";
    ended = true;
    status = 200;
    changed_.notify_all();
  }
  void send(int code, std::string json) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended || (accepted && streams)) << "send out of order";
    ended = true;
    status = code;
    bytes = std::move(json);
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ended; })) << "no answer";
  }
  void wait_for_bytes() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return !bytes.empty(); })) << "no answer";
  }

  bool accepted = false, streams = false, ended = false;
  int status = 0;
  std::string bytes;

 private:
  int writes_;  // after so many, nobody reads any more; -1: never
  std::mutex mutex_;
  std::condition_variable changed_;
};

struct Answered {
  int status = 0;
  std::string bytes;
  Json json() const {
    const auto parsed = parse_json(bytes);
    EXPECT_TRUE(parsed) << bytes;
    return parsed ? *parsed : Json();
  }
  std::vector<SseEvent> events() const { return parse_sse(bytes); }
};

// One model, one service, all APIs.
class TestApi {
 public:
  explicit TestApi(fake::Next next, ApiDefaults defaults = {}, int context = 8192, ServiceOptions options = {})
      : fake_(fake::make_model(std::move(next), context)) {
    defaults.options.sampling.temperature = 0;
    start(*fake_.model, std::move(defaults), std::move(options));
  }
  // Whatever is asked, it says `text`.
  explicit TestApi(std::string text, ApiDefaults defaults = {})
      : TestApi(fake::replies([text](const std::string&) { return text; }), std::move(defaults)) {}
  // A real model.
  explicit TestApi(std::unique_ptr<Model> model) : own_(std::move(model)) {
    ApiDefaults defaults;
    defaults.options.sampling.temperature = 0;
    start(*own_, std::move(defaults), {});
  }
  ~TestApi() { service_->stop(false); }

  Answered ask(ApiKind kind, std::string_view body) {
    const auto output = std::make_shared<TestOutput>();
    api_->answer(kind, body, output);
    output->wait();
    return {output->status, output->bytes};
  }
  Api& api() { return *api_; }
  Service& service() { return *service_; }
  fake::FakeRunner& runner() { return *fake_.runner; }

 private:
  void start(Model& model, ApiDefaults defaults, ServiceOptions options) {
    auto service = Service::start(model, std::move(options));
    EXPECT_TRUE(service) << service.error().message;
    service_ = std::move(*service);
    auto api = Api::create(model, *service_, {"test-model", std::move(defaults)});
    EXPECT_TRUE(api) << api.error().message;
    api_ = std::move(*api);
  }

  fake::FakeModel fake_;
  std::unique_ptr<Model> own_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Api> api_;
};

inline std::string tagged_call(const std::string& name, const std::string& parameters) {
  return "<tool_call>\n<function=" + name + ">\n" + parameters + "</function>\n</tool_call>";
}
inline std::string tagged_parameter(const std::string& key, const std::string& value) {
  return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
}

}  // namespace calla::test
