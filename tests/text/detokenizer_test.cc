#include "text/detokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "text/utf8.h"

namespace calla {
namespace {

const Tokenizer& tiny() {
  static const Result<Tokenizer> t = Tokenizer::load(std::filesystem::path(CALLA_SOURCE_DIR) / "tests/text/data/tiny");
  EXPECT_TRUE(t) << t.error().message;
  return *t;
}

// One token for each byte.
std::vector<int32_t> byte_ids(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) {
    int32_t id = 0;
    while (tiny().bytes(id) != std::string_view(&c, 1)) ++id;
    ids.push_back(id);
  }
  return ids;
}

TEST(Detokenizer, RandomIdsGiveTheRepairedBytesInWholeCharacters) {
  EXPECT_TRUE(rc::check([](bool skip_special) {
    const auto ids = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange(-2, tiny().size() + 2));
    Detokenizer detokenizer(tiny(), skip_special);
    std::string bytes;
    std::string text;
    for (const int32_t id : ids) {
      if (!skip_special || !tiny().is_special(id)) bytes += tiny().bytes(id);
      const std::string piece = detokenizer.push(id);
      RC_ASSERT(valid_utf8(piece));
      text += piece;
      RC_ASSERT(text == repair_utf8(std::string_view(bytes).substr(0, bytes.size() - incomplete_utf8(bytes))));
    }
    text += detokenizer.finish();
    RC_ASSERT(text == repair_utf8(bytes));
  }));
}

TEST(Detokenizer, CharactersComeOutWhenTheyAreWhole) {
  Detokenizer detokenizer(tiny());
  const auto ids = byte_ids("é🙂");
  EXPECT_EQ(detokenizer.push(ids[0]), "");
  EXPECT_EQ(detokenizer.push(ids[1]), "é");
  EXPECT_EQ(detokenizer.push(ids[2]), "");
  EXPECT_EQ(detokenizer.push(ids[3]), "");
  EXPECT_EQ(detokenizer.push(ids[4]), "");
  EXPECT_EQ(detokenizer.push(ids[5]), "🙂");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, WhatCannotBecomeACharacterIsReplaced) {
  Detokenizer detokenizer(tiny());
  const auto ids = byte_ids(
      "\xf0\x9f"
      "a"
      "\xff");
  EXPECT_EQ(detokenizer.push(ids[0]), "");
  EXPECT_EQ(detokenizer.push(ids[1]), "");
  EXPECT_EQ(detokenizer.push(ids[2]),
            "\ufffd"
            "a");
  EXPECT_EQ(detokenizer.push(ids[3]), "\ufffd");
  EXPECT_EQ(detokenizer.push(ids[0]), "");
  EXPECT_EQ(detokenizer.finish(), "\ufffd");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, SpecialTokensAreLeftOutAndOtherControlsStay) {
  const int32_t end = *tiny().control_id("<|im_end|>");
  const int32_t think = *tiny().control_id("<think>");
  Detokenizer hidden(tiny());
  EXPECT_EQ(hidden.push(end), "");
  EXPECT_EQ(hidden.push(think), "<think>");
  Detokenizer shown(tiny(), /*skip_special=*/false);
  EXPECT_EQ(shown.push(end), "<|im_end|>");
}

}  // namespace
}  // namespace calla
