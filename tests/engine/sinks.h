#pragma once

// Sinks for tests of the service.

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/service.h"

namespace calla {

// Collects an answer; wait() for it.
class CollectingSink final : public AnswerSink {
 public:
  struct Progress {
    int done, total, cached;
  };
  explicit CollectingSink(std::function<void(const Delta&)> on_delta = {}) : on_delta_(std::move(on_delta)) {}

  bool wanted() const override { return wanted_; }
  void on_prompt(int done, int total, int cached) override {
    const std::lock_guard lock(mutex_);
    prompt_.push_back({done, total, cached});
    changed_.notify_all();
  }
  void on_delta(const Delta& delta) override {
    if (on_delta_) on_delta_(delta);
    const std::lock_guard lock(mutex_);
    text_ += delta.text;
    changed_.notify_all();
  }
  void on_done(Result<Generation> result) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(result_) << "on_done twice";
    result_ = std::move(result);
    changed_.notify_all();
  }

  Result<Generation> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return result_.has_value(); });
    if (*result_) {
      EXPECT_EQ(text_, (*result_)->text);
    }
    return *result_;
  }
  // Until a part of the prompt is read.
  void wait_for_prompt() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !prompt_.empty() || result_; });
  }
  std::vector<Progress> prompt() const {
    const std::lock_guard lock(mutex_);
    return prompt_;
  }
  bool wanted_ = true;

 private:
  const std::function<void(const Delta&)> on_delta_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::vector<Progress> prompt_;
  std::optional<Result<Generation>> result_;
};

}  // namespace calla
