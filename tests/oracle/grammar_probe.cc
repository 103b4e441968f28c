// Answers questions about grammars for tests/oracle/grammar.mjs, one JSON object a line in and out.
//
//   grammar_probe TOKENIZER_FOLDER
//
//   {"schema": S, "walks": n, "seed": s}     → {"walks": […]}: texts from n random walks over allowed tokens; null
//   where
//                                               one did not end in time
//   {"schema": S, "documents": ["…"]}        → {"accepted": [true, …]}: whether each is allowed, byte by byte
//   {"schema": S, "text": "…"}               → {"ids": […], "masks": ["hex"]}: the text's tokens, and the mask before
//   each
//                                               and after the last; bit i % 8 of byte i / 8 is token i
//
// "tools": [{"name": N, "parameters": S}] in the place of "schema" asks about tool calls. What is refused gives
// {"error": "…"}.

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.h"
#include "grammar/grammar.h"
#include "text/chat_json.h"
#include "text/tokenizer.h"

using namespace calla;
using Json = nlohmann::ordered_json;

namespace {

Result<std::shared_ptr<const Grammar>> compile(const std::shared_ptr<const GrammarVocabulary>& vocabulary,
                                               const Json& request) {
  if (!request.contains("tools")) return Grammar::json_schema(vocabulary, request.at("schema"));
  std::vector<GrammarTool> tools;
  for (const Json& t : request["tools"]) tools.push_back({t.at("name").get<std::string>(), &t.at("parameters")});
  return Grammar::tool_calls(vocabulary, tools, true);
}

bool allowed(const std::vector<uint64_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

// Wanders for a while, then takes what tends to end things.
Json walk(const Tokenizer& tokenizer, const std::shared_ptr<const Grammar>& grammar, Random& random) {
  const GrammarVocabulary& vocabulary = grammar->vocabulary();
  const int wander = static_cast<int>(random.below(60));
  GrammarMatcher matcher(grammar);
  std::vector<uint64_t> mask(vocabulary.words());
  std::string text;
  for (int step = 0; step < 600; ++step) {
    matcher.mask(mask);
    const bool closing = step >= wander;
    const bool may_stop = allowed(mask, vocabulary.stop_ids()[0]);
    if (may_stop && (closing || random.below(8) == 0)) return text;
    std::vector<int32_t> ids, enders;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      if (!allowed(mask, id) || vocabulary.is_stop(id)) continue;
      ids.push_back(id);
      const std::string_view bytes = tokenizer.bytes(id);
      const bool ends = bytes.size() == 1 ? std::string_view("\"]}").find(bytes[0]) != bytes.npos
                                          : bytes == "</tool_call>" || bytes == "\n</";
      if (ends || (closing && bytes.size() <= 2)) enders.push_back(id);
    }
    if (ids.empty()) return may_stop ? Json(text) : Json{{"stuck", text}};
    const bool end = !enders.empty() && (closing ? random.below(8) != 0 : random.below(4) == 0);
    const int32_t id = end ? enders[random.below(enders.size())] : ids[random.below(ids.size())];
    if (!matcher.accept(id)) return Json{{"refused", text}};
    text += tokenizer.bytes(id);
  }
  return nullptr;
}

Json answer(const Tokenizer& tokenizer, const std::shared_ptr<const GrammarVocabulary>& vocabulary,
            const Json& request) {
  const auto grammar = compile(vocabulary, request);
  if (!grammar) return Json{{"error", grammar.error().message}};
  Json out = Json::object();
  if (request.contains("walks")) {
    Random random(request.at("seed").get<uint64_t>());
    out["walks"] = Json::array();
    for (int i = 0; i < request["walks"].get<int>(); ++i) out["walks"].push_back(walk(tokenizer, *grammar, random));
  }
  if (request.contains("documents")) {
    std::vector<int32_t> byte_ids(256);
    for (int32_t id = 0; id < vocabulary->size(); ++id) {
      const std::string_view bytes = vocabulary->bytes(id);
      if (bytes.size() == 1) byte_ids[static_cast<uint8_t>(bytes[0])] = id;
    }
    out["accepted"] = Json::array();
    for (const Json& document : request["documents"]) {
      GrammarMatcher matcher(*grammar);
      bool accepted = true;
      for (const char c : document.get<std::string>()) {
        accepted = accepted && matcher.accept(byte_ids[static_cast<uint8_t>(c)]);
      }
      out["accepted"].push_back(accepted && matcher.can_end());
    }
  }
  if (request.contains("text")) {
    std::vector<int32_t> ids;
    tokenizer.encode(request["text"].get<std::string>(), ids);
    out["ids"] = ids;
    out["masks"] = Json::array();
    GrammarMatcher matcher(*grammar);
    std::vector<uint64_t> mask(vocabulary->words());
    for (size_t i = 0; i <= ids.size(); ++i) {
      matcher.mask(mask);
      std::string hex;
      for (size_t b = 0; b < mask.size() * 8; ++b) {
        for (const int shift : {4, 0})
          hex += "0123456789abcdef"[mask[b / 8] >> (b % 8 * 8 + static_cast<size_t>(shift)) & 15];
      }
      out["masks"].push_back(hex);
      if (i < ids.size() && !matcher.accept(ids[i])) return Json{{"error", "the text is not of the grammar"}};
    }
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const auto tokenizer = argc == 2 ? Tokenizer::load(argv[1]) : invalid("usage: grammar_probe TOKENIZER_FOLDER");
  if (!tokenizer) {
    std::fprintf(stderr, "grammar_probe: %s\n", tokenizer.error().message.c_str());
    return 1;
  }
  const std::vector<int32_t> stop{tokenizer->control_id("<|im_end|>").value_or(-1)};
  auto vocabulary = GrammarVocabulary::build(*tokenizer, stop);
  if (!vocabulary) {
    std::fprintf(stderr, "grammar_probe: %s\n", vocabulary.error().message.c_str());
    return 1;
  }
  const auto shared = std::make_shared<const GrammarVocabulary>(std::move(*vocabulary));
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = parse_json(line);
    const Json out = request ? answer(*tokenizer, shared, *request) : Json{{"error", request.error().message}};
    std::cout << out.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
}
