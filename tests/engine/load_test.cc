// Where the weights lie must not be seen in what the model says, and what cannot be loaded must be said.

#include "engine/load.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/runner.h"
#include "formats/checkpoint.h"
#include "model/weights.h"

namespace calla {
namespace {
namespace fs = std::filesystem;

class LoadTest : public testing::Test {
 protected:
  // A copy of a small checkpoint, whose files may be damaged.
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("calla_load_" + std::to_string(getpid()));
    fs::copy(CALLA_SOURCE_DIR "/tests/goldens/rand-mlx4", dir_, fs::copy_options::recursive);
    weights_ = dir_ / "model.safetensors";
    ASSERT_TRUE(fs::exists(weights_));
  }
  void TearDown() override { fs::remove_all(dir_); }

  Result<std::unique_ptr<Runner>> open(Load load, bool lock = false) const {
    RunnerOptions options;
    options.context = 128;
    options.load = {load, lock, false};
    return open_runner(dir_, options);
  }
  static std::vector<float> logits_of(Runner& runner) {
    const auto sequence = *runner.start();
    const std::vector<int32_t> ids{5, 3, 1, 4};
    const Step step{sequence.get(), ids, Step::Logits::kAll};
    std::vector<float> logits;
    EXPECT_TRUE(runner.forward({&step, 1}, logits));
    return logits;
  }
  fs::path dir_, weights_;
};

TEST_F(LoadTest, EveryWayGivesTheSameBits) {
  const auto mapped = open(Load::kMap);
  ASSERT_TRUE(mapped) << mapped.error().message;
  const std::vector<float> expected = logits_of(**mapped);
  for (const auto& [load, lock] : {std::pair(Load::kAuto, false), {Load::kResident, false}, {Load::kAuto, true}}) {
    const auto runner = open(load, lock);
    ASSERT_TRUE(runner) << runner.error().message;
    EXPECT_EQ(logits_of(**runner), expected);
  }
}

TEST_F(LoadTest, AResidentModelNeedsItsFilesNoMore) {
  const auto runner = open(Load::kResident);
  ASSERT_TRUE(runner) << runner.error().message;
  const std::vector<float> expected = logits_of(**runner);
  fs::resize_file(weights_, 8);
  EXPECT_EQ(logits_of(**runner), expected);
}

TEST_F(LoadTest, WhatDoesNotFitIsRefused) {
  const auto checkpoint = Checkpoint::open(dir_);
  ASSERT_TRUE(checkpoint);
  const auto weights = bind_weights(*checkpoint);
  ASSERT_TRUE(weights);
  Pool pool(2);
  const auto load = [&](Load how) {
    return load_weights(*checkpoint, weights->parts, uint64_t{1} << 60, {how, false, false}, pool);
  };
  const auto resident = load(Load::kResident);
  ASSERT_FALSE(resident);
  EXPECT_EQ(resident.error().code, Error::Code::kMemory);
  EXPECT_NE(resident.error().message.find("is available"), std::string::npos) << resident.error().message;
  EXPECT_TRUE(load(Load::kAuto)) << "read again and again, but it runs";
}

TEST_F(LoadTest, AFileThatBecomesShorterIsNamed) {
  for (const Load how : {Load::kAuto, Load::kResident}) {
    fs::copy_file(CALLA_SOURCE_DIR "/tests/goldens/rand-mlx4/model.safetensors", weights_,
                  fs::copy_options::overwrite_existing);
    const auto checkpoint = Checkpoint::open(dir_);
    ASSERT_TRUE(checkpoint);
    const auto weights = bind_weights(*checkpoint);
    ASSERT_TRUE(weights);
    fs::resize_file(weights_, 4096);
    Pool pool(2);
    const auto loaded = load_weights(*checkpoint, weights->parts, 0, {how, false, false}, pool);
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, Error::Code::kIo);
    EXPECT_NE(loaded.error().message.find(weights_.string()), std::string::npos) << loaded.error().message;
  }
}

}  // namespace
}  // namespace calla
