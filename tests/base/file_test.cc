#include "base/file.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace calla {
namespace {
namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("calla_file_" + std::to_string(getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  fs::path dir_;
};

TEST_F(FileTest, WriteReadMap) {
  const std::string content("a\0b\nc", 5);
  ASSERT_TRUE(write_file(dir_ / "f", content));
  EXPECT_EQ(*read_file(dir_ / "f"), content);
  const auto mapped = MappedFile::open(dir_ / "f");
  ASSERT_TRUE(mapped);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(mapped->bytes().data()), mapped->bytes().size()), content);
  ASSERT_TRUE(write_file(dir_ / "f", ""));
  EXPECT_EQ(*read_file(dir_ / "f"), "");
  EXPECT_EQ(MappedFile::open(dir_ / "f")->bytes().size(), 0u);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), {}), 1) << "a temporary file was left";
}

TEST_F(FileTest, ErrorsNameTheFile) {
  const auto missing = read_file(dir_ / "missing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Error::Code::kNotFound);
  EXPECT_NE(missing.error().message.find("missing"), std::string::npos);
  EXPECT_FALSE(read_file(dir_)) << "a folder is not a file";
  EXPECT_FALSE(MappedFile::open(dir_));
  ASSERT_TRUE(write_file(dir_ / "big", std::string(100, 'x')));
  EXPECT_FALSE(read_file(dir_ / "big", 99));
  EXPECT_TRUE(read_file(dir_ / "big", 100));
  EXPECT_FALSE(write_file(dir_ / "no" / "such" / "folder", "x"));
}

}  // namespace
}  // namespace calla
