#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "base/memory.h"
#include "engine/request_options.h"
#include "server/page_api.h"
#include "server/routes.h"
#include "tests/server/client.h"

namespace calla {

// Everything that `calla serve` puts together, with Bud, and with little patience for slow requests.
class WholeServer : public testing::Test {
 protected:
  WholeServer() {
    keep_heap_flat();
    auto model = Model::open(CALLA_SOURCE_DIR "/models/bud", RunnerOptions{.context = 0, .sequences = 2});
    if (!model) ADD_FAILURE() << model.error().message;
    model_ = std::move(*model);
    service_ = std::move(*Service::start(*model_, ServiceOptions{.running = 2}));
    api_ = std::move(*Api::create(*model_, *service_, ApiOptions{"bud", {default_options(*model_), false}}));
    serving_ = std::make_unique<Serving>(Serving{*api_, *model_, *service_, metrics_, "bud", 0,
                                                 [this] { return server_ ? server_->stats() : HttpStats{}; }});
    add_routes(router_, *serving_);
    page_.add_to(router_);
    HttpOptions http;
    http.admit = [this](const HttpRequest& head) { return router_.admit(head); };
    http.refuse = [this](int status, std::string message, std::string_view path) {
      return router_.refuse(status, std::move(message), path);
    };
    http.head = std::chrono::milliseconds(1000);
    http.body = std::chrono::milliseconds(1000);
    auto server = HttpServer::start(std::move(http), [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      router_.handle(std::move(request), std::move(reply));
    });
    if (!server) ADD_FAILURE() << server.error().message;
    server_ = std::move(*server);
  }
  ~WholeServer() override {
    server_.reset();
    service_->stop(false);
  }
  Client::Answer send(const std::string& bytes) {
    Client client(server_->port());
    client.send(bytes);
    return client.answer(false, 30);
  }
  Client::Answer post(const std::string& path, const std::string& body) {
    return send(request_text("POST " + path, body, "Content-Type: application/json\r\n"));
  }
  // An ordinary request is answered.
  void expect_alive() {
    const auto answer = post("/v1/chat/completions",
                             R"({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0})");
    EXPECT_EQ(answer.status, 200) << answer.body;
  }

  Log log_{LogLevel::kError, false, stderr};
  RequestMetrics metrics_;
  Router router_{*Access::make({.host = "localhost"}), log_, metrics_, error_response};
  std::unique_ptr<Model> model_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<Serving> serving_;
  PageApi page_{testing::TempDir() + "calla_conversations"};
  std::unique_ptr<HttpServer> server_;
};

}  // namespace calla
