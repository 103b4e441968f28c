#include "formats/checkpoint.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/file.h"
#include "formats/safetensors_writer.h"
#include "tests/formats/scratch_dir.h"

namespace calla {
namespace {

constexpr const char* kConfig =
    R"({"model_type":"qwen3_5_moe_text","hidden_size":64,"num_hidden_layers":1,"vocab_size":2,
  "num_attention_heads":1,"num_key_value_heads":1,"linear_num_key_heads":1,"linear_num_value_heads":1,"num_experts":1,
  "num_experts_per_tok":1,"moe_intermediate_size":64,"shared_expert_intermediate_size":64})";

// A folder with config.json and two shards: a in the first, b and c in the second.
class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    write("config.json", kConfig);
    tensors("model-00001-of-00002.safetensors", {"a"});
    tensors("model-00002-of-00002.safetensors", {"b", "c"});
    index(
        R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors","c":"model-00002-of-00002.safetensors"})");
  }
  void write(const std::string& name, const std::string& content) { ASSERT_TRUE(write_file(dir_ / name, content)); }
  void tensors(const std::string& file, const std::vector<std::string>& names) {
    std::vector<TensorSpec> specs;
    for (const auto& name : names) specs.push_back({name, Dtype::kU8, {3}});
    auto writer = SafetensorsWriter::create(dir_ / file, specs);
    ASSERT_TRUE(writer && writer->commit());
  }
  void index(const std::string& map) {
    write("model.safetensors.index.json", R"({"metadata":{"total_size":9},"weight_map":)" + map + "}");
  }
  void expect_refused(Error::Code code, const std::string& part) {
    const auto result = Checkpoint::open(dir_.path());
    ASSERT_FALSE(result) << part;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message << "\nexpected " << part;
    EXPECT_NE(result.error().message.find(dir_.path().string()), std::string::npos)
        << "says where: " << result.error().message;
  }
  ScratchDir dir_;
};

TEST_F(CheckpointTest, OpensShardsThroughTheIndex) {
  const auto c = Checkpoint::open(dir_.path());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->tensors().size(), 3u);
  EXPECT_EQ(c->files().size(), 2u);
  EXPECT_EQ(c->total_bytes(), 9u);
  EXPECT_EQ(c->config().hidden, 64);
  EXPECT_EQ(c->file_of(c->tensors().at("c")), (dir_ / "model-00002-of-00002.safetensors").string());
}

TEST_F(CheckpointTest, OpensOneFileAndAnMtpFile) {
  std::filesystem::remove(dir_ / "model.safetensors.index.json");
  tensors("model.safetensors", {"x"});
  EXPECT_EQ(Checkpoint::open(dir_.path())->tensors().size(), 1u) << "shards that no index names are not read";
  tensors("mtp.safetensors", {"mtp.fc"});
  EXPECT_TRUE(Checkpoint::open(dir_.path())->tensors().contains("mtp.fc"));
  tensors("mtp.safetensors", {"x"});
  expect_refused(Error::Code::kInvalid, "mtp.safetensors: tensor x is also in another file");
}

TEST_F(CheckpointTest, MtpFileBesideTheIndex) {
  tensors("mtp.safetensors", {"mtp.fc"});
  EXPECT_TRUE(Checkpoint::open(dir_.path())->tensors().contains("mtp.fc"));
}

TEST_F(CheckpointTest, RefusesWhatIsNotThere) {
  const auto nowhere = Checkpoint::open(dir_ / "none");
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, Error::Code::kNotFound);
  std::filesystem::remove(dir_ / "model-00002-of-00002.safetensors");
  expect_refused(Error::Code::kNotFound, "shard model-00002-of-00002.safetensors is missing");
  std::filesystem::remove(dir_ / "model.safetensors.index.json");
  expect_refused(Error::Code::kNotFound, "holds neither model.safetensors.index.json nor model.safetensors");
  std::filesystem::remove(dir_ / "config.json");
  expect_refused(Error::Code::kNotFound, "config.json");
}

TEST_F(CheckpointTest, RefusesAnIndexThatDisagreesWithTheShards) {
  index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  expect_refused(Error::Code::kInvalid,
                 "model-00002-of-00002.safetensors: tensor c is not in model.safetensors.index.json");
  index(
      R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors","c":"model-00001-of-00002.safetensors"})");
  expect_refused(Error::Code::kInvalid,
                 "tensor c is here, but model.safetensors.index.json says model-00001-of-00002.safetensors");
  index(
      R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors","c":"model-00002-of-00002.safetensors","d":"model-00001-of-00002.safetensors"})");
  expect_refused(Error::Code::kNotFound, "model-00001-of-00002.safetensors: tensor d is missing");
}

TEST_F(CheckpointTest, RefusesTheSameTensorInTwoShards) {
  tensors("model-00002-of-00002.safetensors", {"a", "b", "c"});
  expect_refused(Error::Code::kInvalid,
                 "tensor a is here, but model.safetensors.index.json says model-00001-of-00002.safetensors");
}

TEST_F(CheckpointTest, RefusesShardNamesOutsideOfTheFolder) {
  for (const char* name : {"../model.safetensors", "/etc/model.safetensors", "sub/model.safetensors",
                           "a\\\\b.safetensors", "..", ".safetensors", "", "model.bin", "m\\u0000.safetensors"}) {
    index(std::string(R"({"a":")") + name + "\"}");
    expect_refused(Error::Code::kInvalid, "which is not the name of a .safetensors file in this folder");
  }
}

TEST_F(CheckpointTest, RefusesABrokenIndex) {
  for (const std::string map : {R"([])", R"({})", R"({"a":1})", R"({"a":"m.safetensors","a":"m.safetensors"})"}) {
    index(map);
    expect_refused(Error::Code::kInvalid, "model.safetensors.index.json: ");
  }
  write("model.safetensors.index.json", "{}");
  expect_refused(Error::Code::kInvalid, "weight_map is missing");
  write("model.safetensors.index.json", std::string(1 << 20, '['));
  expect_refused(Error::Code::kInvalid, "not valid JSON");
}

TEST_F(CheckpointTest, RefusesATruncatedShard) {
  const auto path = dir_ / "model-00002-of-00002.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  expect_refused(
      Error::Code::kIo,
      "model-00002-of-00002.safetensors: file short: tensor c ends at byte 6 of the data, but the file holds 5");
}

}  // namespace
}  // namespace calla
