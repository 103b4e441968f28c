// Any bytes as a schema and as a way through its grammar: the first line is the schema (of a document, or of a tool's
// parameters), each further byte chooses among the allowed tokens. No state is a dead end, the mask is what is accepted
// one by one, and a document that may end is JSON.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "grammar/grammar.h"
#include "text/chat_json.h"
#include "text/tokenizer.h"

using namespace calla;

namespace {

std::shared_ptr<const GrammarVocabulary> vocabulary() {
  static const Tokenizer t = *Tokenizer::load(std::filesystem::path(CALLA_SOURCE_DIR) / "tests/text/data/tiny");
  static const int32_t stop = *t.control_id("<|im_end|>");
  static const auto v = std::make_shared<const GrammarVocabulary>(*GrammarVocabulary::build(t, {&stop, 1}));
  return v;
}

void follow(const std::shared_ptr<const Grammar>& grammar, std::string_view choices, bool json) {
  GrammarMatcher matcher(grammar);
  std::vector<uint64_t> mask(vocabulary()->words());
  std::string text;
  for (const char c : choices.substr(0, 32)) {
    matcher.mask(mask);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocabulary()->size(); ++id) {
      if ((mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0 && !vocabulary()->is_stop(id)) ids.push_back(id);
    }
    CHECK(!ids.empty() || matcher.can_end(), "a start that cannot be completed was allowed");
    if (matcher.can_end() && json) CHECK(parse_json(text), "a complete document is not JSON");
    if (ids.empty()) return;
    const int32_t id = ids[static_cast<uint8_t>(c) * ids.size() / 256];
    CHECK(matcher.accept(id), "an allowed token is not accepted");
    text += vocabulary()->bytes(id);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view line = input.substr(0, input.find('\n'));
  const std::string_view choices = input.substr(std::min(line.size() + 1, input.size()));
  const auto schema = parse_json(line);
  if (!schema) return 0;
  if (const auto grammar = Grammar::json_schema(vocabulary(), *schema)) follow(*grammar, choices, true);
  const GrammarTool tool{"f", &*schema};
  if (const auto grammar = Grammar::tool_calls(vocabulary(), {&tool, 1}, true)) follow(*grammar, choices, false);
  return 0;
}
