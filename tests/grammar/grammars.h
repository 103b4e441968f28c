#pragma once

// What the tests of grammars share.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "grammar/grammar.h"
#include "text/chat_json.h"
#include "text/tokenizer.h"

namespace calla::grammar_test {

using Json = nlohmann::ordered_json;

inline const Tokenizer& tokenizer() {
  static const Tokenizer t = *Tokenizer::load(std::filesystem::path(CALLA_SOURCE_DIR) / "models/bud");
  return t;
}

inline std::shared_ptr<const GrammarVocabulary> vocabulary() {
  static const auto v = [] {
    const std::array<int32_t, 1> stop{*tokenizer().control_id("<|im_end|>")};
    return std::make_shared<const GrammarVocabulary>(*GrammarVocabulary::build(tokenizer(), stop));
  }();
  return v;
}

inline Result<std::shared_ptr<const Grammar>> compile(std::string_view schema) {
  const auto json = parse_json(schema);
  EXPECT_TRUE(json) << schema;
  return Grammar::json_schema(vocabulary(), *json);
}

inline std::shared_ptr<const Grammar> grammar(std::string_view schema) {
  const auto g = compile(schema);
  EXPECT_TRUE(g) << schema << ": " << (g ? "" : g.error().message);
  return *g;
}

inline int32_t byte_token(char c) {
  static const auto ids = [] {
    std::array<int32_t, 256> out{};
    for (int32_t id = 0; id < vocabulary()->size(); ++id) {
      const std::string_view bytes = vocabulary()->bytes(id);
      if (bytes.size() == 1) out[static_cast<uint8_t>(bytes[0])] = id;
    }
    return out;
  }();
  return ids[static_cast<uint8_t>(c)];
}

// Whether the grammar allows the text, byte by byte, to its end.
inline bool accepts(const std::shared_ptr<const Grammar>& g, std::string_view text) {
  GrammarMatcher m(g);
  for (const char c : text) {
    if (!m.accept(byte_token(c))) return false;
  }
  return m.can_end();
}

// The same, as tokens, where the text's markers are control tokens.
inline bool accepts_tokens(const std::shared_ptr<const Grammar>& g, std::string_view text) {
  GrammarMatcher m(g);
  for (const int32_t id : tokenizer().encode_official(text)) {
    if (!m.accept(id)) return false;
  }
  return m.can_end();
}

inline bool allowed(const std::vector<uint64_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

}  // namespace calla::grammar_test
