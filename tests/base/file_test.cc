#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"

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

// Several huge pages and a bit, all bytes different from their neighbours'.
std::string long_content() {
  std::string content((5 << 20) + 123, '\0');
  Random random(1);
  for (char& c : content) c = static_cast<char>(random.next());
  return content;
}

bool same(std::span<const std::byte> bytes, std::string_view text) {
  return std::equal(bytes.begin(), bytes.end(), text.begin(), text.end(),
                    [](std::byte b, char c) { return b == static_cast<std::byte>(c); });
}

TEST_F(FileTest, PartsCanBeReadIntoMemory) {
  const std::string content = long_content();
  ASSERT_TRUE(write_file(dir_ / "f", content));
  const auto file = MappedFile::open(dir_ / "f");
  ASSERT_TRUE(file);
  const auto bytes = file->bytes();
  ASSERT_TRUE(file->populate(bytes));
  // Two parts that share a page with each other and with the bytes around them.
  const std::pair<size_t, size_t> parts[] = {{5000, 3'000'000}, {3'005'100, 2'000'000}};
  for (const auto& [first, size] : parts) ASSERT_TRUE(file->prepare_memory(bytes.subspan(first, size)));
  for (const auto& [first, size] : parts) {
    for (size_t at = 0; at < size; at += 500'000) {
      ASSERT_TRUE(file->read_into_memory(bytes.subspan(first + at, std::min<size_t>(500'000, size - at))));
    }
  }
  EXPECT_TRUE(same(bytes, content));
  // What was read is a copy: it stays when the file loses it.
  std::filesystem::resize_file(dir_ / "f", 4096);
  for (const auto& [first, size] : parts) {
    EXPECT_TRUE(same(bytes.subspan(first, size), std::string_view(content).substr(first, size)));
  }
}

TEST_F(FileTest, AFileThatBecameShorterIsAnError) {
  ASSERT_TRUE(write_file(dir_ / "f", long_content()));
  const auto file = MappedFile::open(dir_ / "f");
  ASSERT_TRUE(file);
  std::filesystem::resize_file(dir_ / "f", 1 << 20);
  const auto tail = file->bytes().subspan(2 << 20);
  const auto populated = file->populate(tail);
  ASSERT_TRUE(file->prepare_memory(tail));
  const auto read = file->read_into_memory(tail);
  for (const auto* result : {&populated, &read}) {
    ASSERT_FALSE(*result);
    EXPECT_EQ(result->error().code, Error::Code::kIo);
    EXPECT_NE(result->error().message.find((dir_ / "f").string()), std::string::npos) << result->error().message;
    EXPECT_NE(result->error().message.find("became shorter"), std::string::npos) << result->error().message;
  }
}

TEST_F(FileTest, LosingAFileWhileItIsUsedEndsWithOneLine) {
  ASSERT_TRUE(write_file(dir_ / "f", long_content()));
  const auto touch_what_is_lost = [&] {
    const auto file = MappedFile::open(dir_ / "f");
    std::filesystem::resize_file(dir_ / "f", 4096);
    report_lost_files();
    std::_Exit(static_cast<int>(file->bytes().back()) | 2);
  };
  EXPECT_EXIT(touch_what_is_lost(), testing::ExitedWithCode(1), "calla: a file of the model became shorter");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which make mlock do nothing
// Locked pages of this process, as the system counts them.
long locked_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    long kib = 0;
    if (word == "VmLck:" && status >> kib) return kib;
  }
  return -1;
}

TEST_F(FileTest, LockingKeepsPagesOrNamesTheLimit) {
  ASSERT_TRUE(write_file(dir_ / "f", long_content()));
  const auto file = MappedFile::open(dir_ / "f");
  ASSERT_TRUE(file);
  const long before = locked_kib();
  ASSERT_TRUE(file->lock(file->bytes().first(64 << 10)));
  EXPECT_EQ(locked_kib(), before + 64);

  const auto lock_too_much = [&] {
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_MEMLOCK, &limit);
    if (::geteuid() == 0 && ::setuid(65534) != 0) std::_Exit(3);  // root has no limit
    const auto locked = file->lock(file->bytes());
    if (!locked) std::fprintf(stderr, "%s", locked.error().message.c_str());
    std::_Exit(locked ? 0 : 1);
  };
  EXPECT_EXIT(lock_too_much(), testing::ExitedWithCode(1), "cannot lock 5.0 MiB of .*may lock 1024 KiB.*ulimit -l");
}
#endif

}  // namespace
}  // namespace calla
