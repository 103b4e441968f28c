#include "engine/locate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

class LocateTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("calla_locate_" + std::to_string(getpid()));
    fs::create_directories(dir_);
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
    setenv("HOME", (dir_ / "home").c_str(), 1);
  }
  void TearDown() override { fs::remove_all(dir_); }
  static void put(const fs::path& path, std::string_view text) {
    fs::create_directories(path.parent_path());
    ASSERT_TRUE(write_file(path, text));
  }
  static std::string error(std::string_view spec) {
    const auto found = find_model(spec);
    EXPECT_FALSE(found) << *found;
    return found ? "" : found.error().message;
  }
  fs::path dir_;
};

TEST_F(LocateTest, Folders) {
  put(dir_ / "m/config.json", "{}");
  put(dir_ / "empty/readme", "");
  EXPECT_EQ(*find_model((dir_ / "m").string()), dir_ / "m");
  EXPECT_NE(error((dir_ / "empty").string()).find("config.json"), std::string::npos);
  EXPECT_NE(error((dir_ / "m/config.json").string()).find("is a file"), std::string::npos);
  EXPECT_NE(error((dir_ / "none").string()).find("there is no folder"), std::string::npos);
  EXPECT_NE(error("").find("there is no folder"), std::string::npos);
  EXPECT_NE(error("../x/y").find("there is no folder"), std::string::npos);
}

TEST_F(LocateTest, HuggingFaceCache) {
  const fs::path hub = dir_ / "home/.cache/huggingface/hub", repo = hub / "models--own-er--na.me";
  EXPECT_NE(error("own-er/na.me").find("hf download own-er/na.me"), std::string::npos);
  // One snapshot and no ref; then a ref that chooses between two.
  put(repo / "snapshots/aaa/config.json", "{}");
  EXPECT_EQ(*find_model("own-er/na.me"), repo / "snapshots/aaa");
  put(repo / "snapshots/bbb/config.json", "{}");
  EXPECT_NE(error("own-er/na.me"), "");
  put(repo / "refs/main", "bbb\n");
  EXPECT_EQ(*find_model("own-er/na.me"), repo / "snapshots/bbb");
  // The variables, the narrowest first.
  setenv("HF_HOME", (dir_ / "hf").c_str(), 1);
  EXPECT_NE(error("own-er/na.me").find((dir_ / "hf/hub").string()), std::string::npos);
  setenv("HF_HUB_CACHE", hub.c_str(), 1);
  EXPECT_EQ(*find_model("own-er/na.me"), repo / "snapshots/bbb");
  // A snapshot that was named but not downloaded whole.
  put(repo / "refs/main", "ccc");
  EXPECT_NE(error("own-er/na.me"), "");
}

}  // namespace
}  // namespace calla
