#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "server/http.h"

namespace calla {

// A reply that keeps what it was given.
struct Kept {
  HttpResponse head;
  std::string body;
  bool complete = false;
  std::function<void()> closed;
};
class FakeReply final : public HttpReply {
 public:
  explicit FakeReply(Kept& kept) : kept_(kept) {}
  void send(HttpResponse r) override {
    kept_.body = r.body;
    kept_.head = std::move(r);
    kept_.complete = true;
  }
  void begin(HttpResponse head, HttpFiller) override { kept_.head = std::move(head); }
  bool write(std::string_view bytes) override {
    kept_.body += bytes;
    return true;
  }
  void finish() override { kept_.complete = true; }
  void hold(HttpResponse, HttpFiller, std::chrono::milliseconds) override {}
  void on_close(std::function<void()> closed) override { kept_.closed = std::move(closed); }

 private:
  Kept& kept_;
};

inline std::string header_of(const Kept& kept, std::string_view name) {
  for (const HttpHeader& h : kept.head.headers) {
    if (h.name == name) return h.value;
  }
  return "";
}

}  // namespace calla
