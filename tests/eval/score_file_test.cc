#include "eval/score_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "tests/formats/scratch_dir.h"

namespace calla {
namespace {

const RunIdentity kRun = {{"model", "a"}, {"text", "b"}, {"options", ""}};
const std::vector<RowScore> kScores = {{1, 2, 0.5, 1, 0.25}, {0, 0, 0, 0, 1}};

class ScoreFileTest : public testing::Test {
 protected:
  std::string error(const RunIdentity& run = kRun, size_t max_rows = 10) {
    const auto loaded = load_scores(path, run, max_rows);
    return loaded ? "" : loaded.error().message;
  }
  ScratchDir dir;
  std::filesystem::path path = dir / "scores";
};

TEST_F(ScoreFileTest, KeepsScores) {
  EXPECT_TRUE(load_scores(path, kRun, 10)->empty());  // no file, nothing done
  for (const auto& scores : {std::vector<RowScore>(), kScores}) {
    ASSERT_TRUE(save_scores(path, kRun, scores));
    const auto loaded = load_scores(path, kRun, 2);
    ASSERT_TRUE(loaded) << loaded.error().message;
    ASSERT_EQ(loaded->size(), scores.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ((*loaded)[i].nll, scores[i].nll);
      EXPECT_EQ((*loaded)[i].reference_nll, scores[i].reference_nll);
      EXPECT_EQ((*loaded)[i].kl, scores[i].kl);
      EXPECT_EQ((*loaded)[i].top1, scores[i].top1);
      EXPECT_EQ((*loaded)[i].top8, scores[i].top8);
    }
  }
  EXPECT_EQ(dir.files(), std::vector<std::string>{"scores"});
}

TEST_F(ScoreFileTest, ServesOneRunOnly) {
  ASSERT_TRUE(save_scores(path, kRun, kScores));
  for (const auto& part : {"model", "text", "options"}) {
    RunIdentity other = kRun;
    other[part].push_back('x');
    EXPECT_NE(error(other).find(std::string("the same ") + part), std::string::npos) << error(other);
  }
  RunIdentity more = kRun;
  more.emplace("reference", "c");
  EXPECT_NE(error(more).find("the same reference"), std::string::npos);
}

TEST_F(ScoreFileTest, RefusesWhatNoRunWrote) {
  ASSERT_TRUE(save_scores(path, kRun, kScores));
  EXPECT_NE(error(kRun, 1).find("at most 1"), std::string::npos) << error(kRun, 1);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const RowScore& bad : {RowScore{.nll = kNan}, RowScore{.nll = -1}, RowScore{.kl = INFINITY},
                              RowScore{.top1 = 0.5}, RowScore{.top8 = 2}, RowScore{.top8 = kNan}}) {
    ASSERT_TRUE(save_scores(path, kRun, {kScores[0], bad}));
    EXPECT_NE(error().find("row 1 of the scores is impossible"), std::string::npos) << error();
  }
  ASSERT_TRUE(save_scores(path, kRun, kScores));
  const auto whole = read_file(path);
  ASSERT_TRUE(whole);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{40}, whole->size() - 1}) {
    ASSERT_TRUE(write_file(path, std::string_view(*whole).substr(0, size)));
    EXPECT_NE(error().find("scores"), std::string::npos) << size;
  }
  const TensorData wrong[] = {{"scores", Dtype::kF64, {5, 2}, std::as_bytes(std::span(kScores))}};
  ASSERT_TRUE(write_safetensors(path, wrong));
  EXPECT_NE(load_scores(path, {}, 10).error().message.find("[5, 2]"), std::string::npos);
  const TensorData none[] = {{"model", Dtype::kU8, {0}, {}}};
  ASSERT_TRUE(write_safetensors(path, none));
  EXPECT_NE(error().find("no scores"), std::string::npos);
}

}  // namespace
}  // namespace calla
