#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tests/app/program.h"

namespace calla {
namespace {

using Json = nlohmann::json;

class BenchTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(has_bud()) << "models/bud is not there"; }
  // Rounds of a few milliseconds on a busy machine differ by anything: only tests of the refusal care.
  static Ran bench(std::vector<std::string> args) {
    const std::vector<std::string> common = {"bench", "--steps", "4", "--tolerance", "1000"};
    args.insert(args.begin(), common.begin(), common.end());
    return run_program(args);
  }
  TempDir dir_;
};

TEST_F(BenchTest, TableJsonAndPlot) {
  const Ran ran = bench({"--contexts", "16,48", "--depth", "64", "--prompt", "20", "--profile", "--json",
                         dir_ / "b.json", "--svg", dir_ / "b.svg"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  for (const char* what : {"GB/s", "kernels", "fingerprint", "prefill tok/s", "of ceiling", "64+20", "delta_rule"}) {
    EXPECT_NE(ran.out.find(what), std::string::npos) << what << "\n" << ran.out;
  }
  const Json json = Json::parse(read_file(dir_ / "b.json").value());
  ASSERT_EQ(json["rows"].size(), 3u);
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row["refused"], nullptr);
    EXPECT_GT(row["prefill"]["tokens_per_second"], 0);
    EXPECT_GT(row["decode"]["share_of_ceiling"], 0);
    ASSERT_EQ(row["rounds"].size(), 2u);
    EXPECT_EQ(row["rounds"][0]["digest"], row["rounds"][1]["digest"]);
    EXPECT_FALSE(row["profile"]["decode"].empty());
  }
  EXPECT_EQ(json["build"]["sha256"].get<std::string>().size(), 64u);
  EXPECT_GT(json["peak_memory"]["anonymous_bytes"], 1 << 20);
  EXPECT_TRUE(read_file(dir_ / "b.svg").value().starts_with("<svg"));
}

TEST_F(BenchTest, DigestsDoNotDependOnTheRun) {
  const auto digest = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"--contexts", "40", "--json", dir_ / "d.json"};
    args.insert(args.end(), more.begin(), more.end());
    EXPECT_EQ(bench(args).code, 0);
    return Json::parse(read_file(dir_ / "d.json").value())["rows"][0]["rounds"][0]["digest"].get<std::string>();
  };
  EXPECT_EQ(digest({}), digest({"--threads", "1", "--rounds", "3"}));
}

TEST_F(BenchTest, RefusedRowsFail) {
  const Ran ran = run_program({"bench", "--contexts", "16", "--steps", "2", "--tolerance", "0"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("REFUSED"), std::string::npos) << ran.out;
  EXPECT_EQ(ran.err.rfind("calla: 1 of 1 rows refused", 0), 0u) << ran.err;
}

TEST_F(BenchTest, ComparesWithAPeer) {
  ASSERT_TRUE(write_file(dir_ / "peer.json", R"([{"n_prompt": 16, "n_gen": 0, "avg_ts": 0.001}])"));
  const Ran ran = bench({"--contexts", "16", "--compare", "cat " + (dir_ / "peer.json")});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("ratio"), std::string::npos) << ran.out;
  const Ran fails = bench({"--contexts", "16", "--compare", "echo no model >&2; exit 4"});
  EXPECT_EQ(fails.code, 1);
  EXPECT_EQ(fails.out, "");
  EXPECT_EQ(fails.err, "round 1 of 2: the peer runs\ncalla: the command ended with exit code 4: no model\n");
  EXPECT_EQ(bench({"--contexts", "16", "--compare", "echo hello"}).code, 1);
}

TEST_F(BenchTest, SaysWhatIsLeftOut) {
  const Ran ran = bench({"--minutes", "0.00001"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("contexts from 8,192 on: the context ends at 8,192 tokens"), std::string::npos) << ran.err;
  EXPECT_NE(ran.out.find("left out for their time: 512 to 4,096"), std::string::npos) << ran.out;
  const Ran small = bench({"--context", "300"});
  EXPECT_NE(small.err.find("from 512 on: the context ends at 300"), std::string::npos) << small.err;
  EXPECT_EQ(bench({"--context", "100"}).code, 1);
  EXPECT_EQ(bench({"--contexts", "9000"}).code, 1) << "named contexts must fit";
  const Ran named = bench({"--contexts", "98", "--context", "100"});
  EXPECT_EQ(named.code, 1);
  EXPECT_EQ(named.err, "calla: 98 and 4 steps need 102 positions, more than --context 100\n");
}

TEST_F(BenchTest, UnwritableFilesAreKnownBeforehand) {
  for (const char* flag : {"--json", "--svg"}) {
    const Ran ran = bench({"--contexts", "16", flag, dir_ / "no/such/file"});
    EXPECT_EQ(ran.code, 1);
    EXPECT_EQ(ran.out, "") << "nothing was measured";
    EXPECT_EQ(ran.err, "calla: cannot write " + (dir_ / "no/such/file") + ": No such file or directory\n");
  }
  EXPECT_EQ(run_program({"bench", "--contexts", "16", "--steps", "2", "--tolerance", "1000"}, "", true).code, 1)
      << "nobody reads the table";
}

TEST_F(BenchTest, CtrlCLeavesNoFiles) {
  Terminal terminal({"bench", "--contexts", "4000", "--rounds", "1000", "--json", dir_ / "b.json"});
  ASSERT_TRUE(terminal.expect("round 1 of 1000", 60));
  terminal.type("\x03");
  EXPECT_EQ(terminal.wait(), 130) << terminal.rest();
  EXPECT_FALSE(std::filesystem::exists(dir_ / "b.json"));
  Terminal comparing({"bench", "--contexts", "16", "--steps", "2", "--compare", "sleep 100"});
  ASSERT_TRUE(comparing.expect("the peer runs", 60));
  comparing.type("\x03");
  EXPECT_EQ(comparing.wait(), 130) << comparing.rest();
}

}  // namespace
}  // namespace calla
