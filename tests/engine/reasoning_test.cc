#include "engine/reasoning.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace calla {
namespace {

struct Case {
  bool open;
  std::string text, reasoning, answer;
};

TEST(ReasoningSplitter, AnyCutGivesTheSame) {
  const Case cases[] = {
      {true, "I think.\n</think>\n\nYes.", "I think.", "Yes."},
      {true, "\n</think>\n\nYes.\n", "", "Yes.\n"},
      {true, "</think>Yes.", "", "Yes."},
      {true, "a\n\nb </thin </think>\n\n\n< b", "a\n\nb </thin ", "< b"},
      {true, "never closed\n", "never closed\n", ""},
      {true, "x</thi", "x</thi", ""},
      {false, "Plain\n\nanswer <think>", "", "Plain\n\nanswer <think>"},
      {false, "<think>\nhm\n</think>\n\nYes.", "hm", "Yes."},
      {false, "\n<thinking is hard", "", "\n<thinking is hard"},
      {false, "<thi", "", "<thi"},
      {false, "", "", ""},
      {true, "a</think></think>b", "a", "</think>b"},
  };
  Random random(4);
  for (const Case& c : cases) {
    for (int round = 0; round < 200; ++round) {
      ReasoningSplitter splitter(c.open);
      std::string reasoning, answer;
      auto add = [&](const ReasoningSplitter::Split& s) {
        EXPECT_TRUE(s.reasoning.empty() || answer.empty()) << "reasoning after the answer began";
        reasoning += s.reasoning;
        answer += s.answer;
      };
      for (size_t at = 0; at < c.text.size();) {
        const size_t n = 1 + random.below(6);
        add(splitter.push(std::string_view(c.text).substr(at, n)));
        at += n;
      }
      add(splitter.finish());
      ASSERT_EQ(reasoning, c.reasoning) << c.text;
      ASSERT_EQ(answer, c.answer) << c.text;
    }
  }
}

TEST(ReasoningSplitter, HoldsBackOnlyWhatCouldBeAMarker) {
  ReasoningSplitter splitter(true);
  EXPECT_EQ(splitter.push("\nab\n").reasoning, "ab");
  EXPECT_EQ(splitter.push("c").reasoning, "\nc");
  EXPECT_EQ(splitter.push("\n</thi").reasoning, "");
  EXPECT_TRUE(splitter.reasoning());
  EXPECT_EQ(splitter.push("nk>\n").answer, "");
  EXPECT_FALSE(splitter.reasoning());
  EXPECT_EQ(splitter.push("\n").answer, "");
  EXPECT_EQ(splitter.push("ok").answer, "ok");
}

}  // namespace
}  // namespace calla
