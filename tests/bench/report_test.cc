#include "bench/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "bench/plot.h"

namespace calla {
namespace {

using Json = nlohmann::json;

BenchResult result_of(const BenchRow& row, double prefill_rate, double decode_rate) {
  BenchResult r;
  r.row = row;
  r.cost = {2e9, 2.5e9 * row.prompt};
  BenchRound round;
  round.prefill_seconds = round.first_token_seconds = row.prompt / prefill_rate;
  round.decode_seconds = row.steps / decode_rate;
  round.digest = "0123456789abcdef";
  round.prefill_verbs.add({"project", 2048, 9216, 40, 1.5, 2'000'000'000, 3'000'000'000});
  round.prefill_verbs.add({"add", 0, 0, 40, 0.25});
  round.decode_verbs.add({"moe", 0, 0, 64, 2, 8'000'000'000, 1'000'000'000});
  r.rounds = {round, round};
  r.warm_ups = {round};
  r.summary = summarise(r.row, r.rounds, r.warm_ups, 0.03);
  return r;
}

// Contexts 512 and 1,024 (refused), and 512 more at 8,192; a peer that is half as fast.
BenchReport report() {
  BenchReport r;
  r.build = {"0.1", "cafe"};
  r.machine = {"Some <Processor> & more", "avx2", 2, 1 << 30};
  r.model.name = "a & b";
  r.model.fingerprint = "fedcba9876543210";
  r.tolerance = 0.03;
  r.ceilings = {20e9, 200e9};  // 10 tokens a second decode, 80 prefill
  r.load_seconds = {1.5};
  r.peak = {3 << 20, 5 << 20};
  r.results = {result_of({0, 512, 64}, 40, 8), result_of({0, 1024, 64}, 36, 7.6), result_of({8192, 512, 64}, 30, 6)};
  r.results[1].rounds[1].decode_seconds *= 2;
  r.results[1].summary = summarise(r.results[1].row, r.results[1].rounds, {}, r.tolerance);
  r.skipped = {{0, 2048, 64}, {0, 4096, 64}};
  r.peer = "peer --fast";
  r.peer_tests = {{PeerTest::Kind::kPrefill, 512, 0, {20}}, {PeerTest::Kind::kDecode, 64, 512, {4}}};
  return r;
}

// The line of `text` whose first word is `word`, from the `nth` such one; words separated by one space.
std::string line_of(const std::string& text, const std::string& word, int nth = 0) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line = std::regex_replace(line, std::regex(" +"), " ");
    if (line.starts_with(" ")) line.erase(0, 1);
    if (line.starts_with(word + " ") && nth-- == 0) return line;
  }
  return "";
}

TEST(Report, TableAndRatios) {
  const std::string text = report_text(report());
  EXPECT_EQ(line_of(text, "512"), "512 40.0 50 % 12.8 s 8.00 80 % - 01234567");
  EXPECT_EQ(line_of(text, "1,024"), "1,024 36.0 45 % 28.4 s 5.70 57 % - 01234567 REFUSED: decode differs by 66.7 %");
  EXPECT_EQ(line_of(text, "8,192+512"), "8,192+512 30.0 38 % 17.1 s 6.00 60 % - 01234567");
  EXPECT_EQ(line_of(text, "512", 1), "512 20.0 2.00 4.00 2.00");
  EXPECT_EQ(line_of(text, "1,024", 1), "1,024 - - - - REFUSED");
  EXPECT_NE(text.find("left out for their time: 2,048 to 4,096"), std::string::npos);
  EXPECT_EQ(text.find("between them"), std::string::npos) << "nothing was profiled";
}

TEST(Report, SaysWhatAPeerMeasuredIfNothingCanBeCompared) {
  BenchReport r = report();
  EXPECT_EQ(report_text(r).find("other shapes"), std::string::npos);
  r.peer_tests = {{PeerTest::Kind::kPrefill, 2048, 0, {20}},
                  {PeerTest::Kind::kDecode, 64, 0, {4}},
                  {PeerTest::Kind::kDecode, 64, 0, {5}}};
  EXPECT_NE(report_text(r).find("other shapes: decode 64 at 0, prefill 2,048 at 0\n"), std::string::npos);
}

TEST(Report, ProfileAddsUp) {
  BenchReport r = report();
  r.profiled = true;
  const std::string text = report_text(r);
  // Two rounds: 80 calls, 3 of 25.6 seconds, 4 GB, 6 GMAC.
  EXPECT_EQ(line_of(text, "project"), "project 2048 → 9216 80 3.0000 12 % 4.000 1.3 6.00 2.0");
  EXPECT_EQ(line_of(text, "add"), "add 80 0.5000 2 % - - - -");
  EXPECT_EQ(line_of(text, "all"), "all verbs 3.5000 14 % 4.000 1.1 6.00 1.7");
  EXPECT_EQ(line_of(text, "between"), "between them 22.1000 86 %");
  EXPECT_EQ(line_of(text, "moe"), "moe 128 4.0000 25 % 16.000 4.0 2.00 0.5");
  const Json json = Json::parse(report_json(r));
  EXPECT_EQ(json["rows"][0]["profile"]["decode"][0]["calls"], 128);
}

TEST(Report, AGpuIsNamedByItsOwnUnits) {
  BenchReport r = report();
  r.machine = {"Some GPU", "CUDA 9.0", 132, 1 << 30, "multiprocessor"};
  r.ceilings.numbers = "f16";
  EXPECT_NE(report_text(r).find("Some GPU, 132 multiprocessors, CUDA 9.0 kernels\n"), std::string::npos);
  EXPECT_NE(report_text(r).find("f16 200 GMAC/s\n"), std::string::npos);
  const Json json = Json::parse(report_json(r));
  EXPECT_EQ(json["machine"]["multiprocessors"], 132);
  EXPECT_EQ(json["ceilings"]["f16_macs_per_second"], 200e9);
}

TEST(Report, JsonHoldsEverything) {
  BenchReport r = report();
  r.results[0].rounds[0].decode_joules = 64;
  const Json json = Json::parse(report_json(r));
  EXPECT_EQ(json["build"]["sha256"], "cafe");
  EXPECT_EQ(json["machine"]["isa"], "avx2");
  EXPECT_EQ(json["machine"]["threads"], 2);
  EXPECT_EQ(json["model"]["fingerprint"], "fedcba9876543210");
  EXPECT_TRUE(json["model"]["shape"].contains("experts"));
  EXPECT_EQ(json["peak_memory"]["anonymous_bytes"], 3 << 20);
  ASSERT_EQ(json["rows"].size(), 3u);
  const Json& row = json["rows"][0];
  EXPECT_EQ(row["refused"], nullptr);
  EXPECT_DOUBLE_EQ(row["decode"]["share_of_ceiling"], 0.8);
  EXPECT_DOUBLE_EQ(row["prefill"]["ceiling_tokens_per_second"], 80);
  EXPECT_DOUBLE_EQ(row["peer_ratio"]["decode"], 2);
  EXPECT_EQ(row["decode"]["joules_per_token"], nullptr) << "one round does not know";
  ASSERT_EQ(row["rounds"].size(), 2u);
  EXPECT_EQ(row["rounds"][0]["decode_joules"], 64);
  EXPECT_EQ(row["rounds"][1]["decode_joules"], nullptr);
  EXPECT_EQ(row["warm_ups"].size(), 1u);
  EXPECT_FALSE(row.contains("profile"));
  EXPECT_NE(json["rows"][1]["refused"], nullptr);
  EXPECT_EQ(json["rows"][2]["peer_ratio"]["prefill"], nullptr);
  EXPECT_EQ(json["rows"][2]["decode_depth"], 8192);
  EXPECT_EQ(json["skipped"].size(), 2u);
  EXPECT_EQ(json["peer"]["tests"].size(), 2u);
  EXPECT_EQ(r.refused(), 1);
}

// Whether `xml` is one element with nothing around it, every tag closed in order, and no markup in text or attributes.
// As strict as our own output needs; no comments, CDATA or processing instructions.
bool well_formed(const std::string& xml) {
  static const std::regex tag(R"re(<(/?)([a-z]+)((?: [a-zA-Z][a-zA-Z0-9:-]*="[^"<&]*")*)(/?)>)re");
  static const std::regex text(R"(([^<>&]|&(amp|lt|gt);)*)");
  std::vector<std::string> open;
  size_t at = 0;
  while (at < xml.size()) {
    std::smatch m;
    const std::string rest = xml.substr(at);
    if (!std::regex_search(rest, m, tag, std::regex_constants::match_continuous)) return false;
    if (m[1].length() > 0) {
      if (m[3].length() + m[4].length() > 0 || open.empty() || open.back() != m[2]) return false;
      open.pop_back();
    } else if (m[4].length() == 0) {
      open.push_back(m[2]);
    }
    at += static_cast<size_t>(m.length());
    const size_t next = std::min(xml.find('<', at), xml.size());
    const std::string between = xml.substr(at, next - at);
    if (!std::regex_match(between, text)) return false;
    if (open.empty()) return between == "\n" && next == xml.size();
    at = next;
  }
  return false;
}

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

TEST(Plot, TheCheckItselfFindsFaults) {
  EXPECT_TRUE(well_formed("<a x=\"1\"><b/>t &amp; u</a>\n"));
  for (const char* bad : {"", "t", "<a>", "<a></b>\n", "<a></a><b></b>\n", "<a>&</a>\n", "<a x=1></a>\n", "<a/>x",
                          "<a x=\"<\"></a>\n", "<a><b></a></b>\n", "</a>\n"}) {
    EXPECT_FALSE(well_formed(bad)) << bad;
  }
}

TEST(Plot, IsWellFormedWhateverTheNamesAre) {
  BenchReport r = report();
  EXPECT_TRUE(well_formed(report_svg(r)));
  r.model.name = "]]>\x01\"'<script>alert(1)</script>";
  const std::string svg = report_svg(r);
  EXPECT_TRUE(well_formed(svg));
  EXPECT_EQ(svg.find("<script"), std::string::npos);
}

TEST(Plot, DrawsTheMatrix) {
  const std::string svg = report_svg(report());
  // Of each chart: two rows of ours and one of the peer as points, with the ceiling three lines; no row at a depth.
  EXPECT_EQ(count(svg, "<circle class=\"ours"), 4);
  EXPECT_EQ(count(svg, "<circle class=\"peer"), 2);
  EXPECT_EQ(count(svg, "<circle class=\"ours hollow\""), 2) << "refused in both charts";
  EXPECT_EQ(count(svg, "<polyline"), 6);
  EXPECT_EQ(count(svg, ">tokens a second<"), 2);
  EXPECT_EQ(count(svg, ">context, tokens<"), 2);
  EXPECT_EQ(count(svg, ">1k<"), 2);
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

// The area inside the axes of the left chart; a rate of 0 is its lower edge, and 8 of 10 lies at four fifths.
TEST(Plot, PointsLieWhereTheyShould) {
  BenchReport r = report();
  r.peer_tests.clear();
  const std::string svg = report_svg(r);
  std::smatch m;
  ASSERT_TRUE(std::regex_search(svg, m, std::regex(R"re(class="ours line" points="([0-9.]+),([0-9.]+) ([0-9.]+),)re")));
  std::vector<double> grid;
  const std::regex line(R"re(class="grid" x1="([0-9.]+)" x2="([0-9.]+)" y1="([0-9.]+)")re");
  std::smatch first;
  ASSERT_TRUE(std::regex_search(svg, first, line));
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), line); it != std::sregex_iterator(); ++it) {
    if ((*it)[1] == first[1]) grid.push_back(std::stod((*it)[3]));
  }
  ASSERT_GE(grid.size(), 3u);
  EXPECT_NEAR(std::stod(m[1]), std::stod(first[1]), 0.11) << "the first context at the left edge";
  EXPECT_NEAR(std::stod(m[3]), std::stod(first[2]), 0.11) << "the last at the right";
  EXPECT_NEAR(std::stod(m[2]), grid.front() + 0.8 * (grid.back() - grid.front()), 0.11);
}

TEST(Plot, OneContextAndNoCeiling) {
  BenchReport r = report();
  r.results.resize(1);
  r.ceilings = {};
  const std::string svg = report_svg(r);
  EXPECT_TRUE(well_formed(svg));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

}  // namespace
}  // namespace calla
