#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/file.h"
#include "formats/safetensors_writer.h"
#include "tests/formats/scratch_dir.h"

namespace calla {
namespace {

std::string file_with(std::string_view header, size_t data_bytes, int64_t length = -1) {
  const uint64_t n = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::string file(8, '\0');
  std::memcpy(file.data(), &n, 8);
  return file + std::string(header) + std::string(data_bytes, '\1');
}

Result<TensorMap> parse(std::string_view file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "f");
}

TEST(Safetensors, ReadsEveryTensorAtItsPlace) {
  const std::string file =
      file_with(R"({"__metadata__":{"format":"mlx"},"b":{"dtype":"U32","shape":[2],"data_offsets":[3,11]},)"
                R"("a":{"dtype":"U8","shape":[3,1],"data_offsets":[0,3]},)"
                R"("none":{"dtype":"F32","shape":[0,4],"data_offsets":[3,3]},)"
                R"("one":{"dtype":"BF16","shape":[],"data_offsets":[11,13]}}   )",
                13);
  const auto tensors = parse(file);
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 4u);
  const TensorView& b = tensors->at("b");
  EXPECT_EQ(b.dtype, Dtype::kU32);
  EXPECT_EQ(b.shape, std::vector<int64_t>{2});
  EXPECT_EQ(reinterpret_cast<const char*>(b.data.data()), file.data() + file.size() - 10)
      << "unaligned data stay where they are";
  EXPECT_EQ(tensors->at("one").data.size(), 2u);
  EXPECT_EQ(tensors->at("none").data.size(), 0u);
}

struct Bad {
  const char* what;
  std::string file;
  Error::Code code;
  const char* message;
};

TEST(Safetensors, RefusesWithOnePreciseLine) {
  const auto one = [](std::string_view entry, size_t bytes = 4) {
    return file_with("{\"t\":" + std::string(entry) + "}", bytes);
  };
  using enum Error::Code;
  const std::vector<Bad> cases = {
      {"empty file", "", kIo, "f: file short: 0 bytes cannot hold a safetensors header"},
      {"seven bytes", std::string(7, '\0'), kIo, "f: file short: 7 bytes"},
      {"header longer than the file", file_with("{}", 0, 3), kIo,
       "f: file short: the header takes 3 bytes, but only 2 follow"},
      {"absurd length", file_with("{}", 0, INT64_MAX), kInvalid,
       "f: not a safetensors file: its header would take 9223372036854775807 bytes"},
      {"no header", file_with("", 0), kInvalid, "f: the header is not a JSON object"},
      {"an array", file_with("[]", 0), kInvalid, "f: the header is not a JSON object"},
      {"two values", file_with("{} {}", 0), kInvalid, "f: the header is not a JSON object"},
      {"deep nesting", file_with("{\"t\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0), kInvalid,
       "f: the header is not a JSON object"},
      {"not UTF-8", file_with("{\"\xff\":{}}", 0), kInvalid, "f: the header is not a JSON object"},
      {"entry is no object", one("7"), kInvalid, "f: tensor t: expected an object"},
      {"missing field", one(R"({"dtype":"F32","shape":[1]})"), kInvalid,
       "f: tensor t: dtype, shape or data_offsets is missing"},
      {"extra field", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1})"), kInvalid,
       "f: tensor t: unexpected or repeated field \"x\""},
      {"repeated field", one(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"), kInvalid,
       "repeated field \"dtype\""},
      {"unknown dtype", one(R"({"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]})"), kUnsupported,
       "f: tensor t: unknown dtype \"F8_E4M3\""},
      {"negative size", one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), kInvalid,
       "f: tensor t: shape holds something other than a size"},
      {"fractional size", one(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"), kInvalid,
       "shape holds something other than a size"},
      {"product overflows", one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})"), kInvalid,
       "f: tensor t: shape [4294967296, 4294967296] is too large"},
      {"product overflows to fit", one(R"({"dtype":"F32","shape":[2305843009213693952,8,2],"data_offsets":[0,0]})", 0),
       kInvalid, "is too large"},
      {"too many dimensions", one(R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4]})"), kInvalid,
       "more than 8 dimensions"},
      {"negative offset", one(R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})"), kInvalid,
       "f: tensor t: data_offsets is not a pair of offsets"},
      {"three offsets", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})"), kInvalid,
       "data_offsets is not a pair of offsets"},
      {"offset beyond 64 bits", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551620]})"), kInvalid,
       "f: "},
      {"backwards", one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), kInvalid,
       "f: tensor t: data_offsets [4, 0] run backwards"},
      {"wrong size", one(R"({"dtype":"BF16","shape":[3],"data_offsets":[0,4]})"), kInvalid,
       "f: tensor t: BF16 [3] takes 6 bytes, but data_offsets [0, 4] hold 4"},
      {"short", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), kIo,
       "f: file short: tensor t ends at byte 8 of the data, but the file holds 4"},
      {"trailing bytes", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 5), kInvalid,
       "f: 1 bytes after the last tensor"},
      {"gap at the start", one(R"({"dtype":"U8","shape":[2],"data_offsets":[2,4]})"), kInvalid,
       "f: tensor t starts at byte 2 of the data, leaving a gap"},
      {"overlap",
       file_with(
           R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
           4),
       kInvalid, "f: tensor b starts at byte 1 of the data, overlapping the tensor before it, which ends at 3"},
      {"same name twice",
       file_with(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
           4),
       kInvalid, "f: tensor a appears twice in the header"},
      {"metadata", file_with(R"({"__metadata__":{"a":1}})", 0), kInvalid,
       "f: __metadata__ field \"a\" is not a string"},
      {"control characters are shown as such", file_with(R"({"\u001b[2J\n":7})", 0), kInvalid,
       "f: tensor \\x1b[2J\\x0a: expected an object"},
  };
  for (const Bad& bad : cases) {
    const auto result = parse(bad.file);
    ASSERT_FALSE(result) << bad.what;
    EXPECT_EQ(result.error().code, bad.code) << bad.what;
    EXPECT_NE(result.error().message.find(bad.message), std::string::npos)
        << bad.what << ": " << result.error().message;
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << bad.what;
  }
}

// Every truncation of a good file is refused, by whatever it cuts.
TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file = file_with(
      R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[3,6]}})",
      6);
  ASSERT_TRUE(parse(file));
  for (size_t n = 0; n < file.size(); ++n) {
    const auto result = parse(std::string_view(file).substr(0, n));
    ASSERT_FALSE(result) << n;
    EXPECT_EQ(result.error().code, Error::Code::kIo) << n;
  }
}

TEST(Safetensors, WritesWhatItReads) {
  const ScratchDir dir;
  const std::vector<float> a = {1.0f, -2.0f};
  const std::vector<uint8_t> b = {7, 8, 9};
  const TensorData tensors[] = {{"b", Dtype::kU8, {3}, std::as_bytes(std::span(b))},
                                {"a", Dtype::kF32, {1, 2}, std::as_bytes(std::span(a))}};
  ASSERT_TRUE(write_safetensors(dir / "t.safetensors", tensors));
  const auto file = SafetensorsFile::open(dir / "t.safetensors");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(std::memcmp(file->tensors().at("a").data.data(), a.data(), 8), 0);
  EXPECT_EQ(std::memcmp(file->tensors().at("b").data.data(), b.data(), 3), 0);
  EXPECT_EQ((file->tensors().at("b").data.data() - file->file().bytes().data()) % 64, 0)
      << "data start at a multiple of 64";
  EXPECT_EQ(dir.files(), std::vector<std::string>{"t.safetensors"});
}

TEST(SafetensorsWriter, LeavesNothingBehindUnlessCommitted) {
  const ScratchDir dir;
  {
    const auto writer = SafetensorsWriter::create(dir / "t.safetensors", {{"a", Dtype::kU8, {3}}});
    ASSERT_TRUE(writer);
    EXPECT_EQ(dir.files(), std::vector<std::string>{"t.safetensors.part"});
  }
  EXPECT_TRUE(dir.files().empty());
  const auto nowhere = SafetensorsWriter::create(dir / "no" / "t.safetensors", {});
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, Error::Code::kIo);
  EXPECT_FALSE(SafetensorsWriter::create(dir / "huge.safetensors", {{"a", Dtype::kU8, {int64_t{1} << 50}}}))
      << "a full disk is noticed first";
  EXPECT_TRUE(dir.files().empty());
}

}  // namespace
}  // namespace calla
