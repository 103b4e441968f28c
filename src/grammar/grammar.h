#pragma once

// Which token may come next, so that an answer is what a schema or a list of tools asks for.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "base/result.h"
#include "grammar/vocabulary.h"

namespace calla {

class GrammarAutomaton;
class GrammarMatcher;
struct GrammarProgram;

// A tool that may be called.
struct GrammarTool {
  std::string name;                                    // without '<', '>' and line ends
  const nlohmann::ordered_json* parameters = nullptr;  // the schema of its arguments; null: none
  // False: what the grammar cannot express is left out, down to the type of a value, rather than refused.
  bool strict = true;
};

// Every document that a grammar allows is one that its schema accepts, and every start that it allows can be completed.
// Not every document that the schema accepts is allowed: of each value there is what a model would naturally write.
//
//   layout       none, one space, or a line end with up to 32 spaces or 8 tabs after { [ , and before ] }; none or one
//                space after a colon; up to two line ends before the document, nothing after it
//   objects      the properties in the schema's order, those that are not required may be left out; further properties
//                after them, if additionalProperties allows them by name, or if the schema has no properties
//   numbers      integers to 19 digits; others to 21 digits before and 24 after the point and an exponent to ±289. With
//                bounds or multipleOf: no exponent and 15 digits together, or 18 of an integer with bounds alone
//   strings      any JSON spelling; with a pattern or format: characters as they are, and the escapes that JSON needs
//   nesting      containers to 64 levels, what parse_json reads
//
// Schemas are those of JSON Schema 2020-12, of which these keywords are known: type, enum, const, anyOf, $ref (local),
// $defs, properties, required, additionalProperties, items, prefixItems, minItems, maxItems, minLength, maxLength,
// pattern, format (date, time, date-time, duration, email, hostname, ipv4, ipv6, uuid; others say nothing), minimum,
// maximum, exclusiveMinimum, exclusiveMaximum, multipleOf; oneOf where its parts have nothing in common; allOf, and
// what stands beside anyOf, oneOf or $ref, where the parts can be written as one schema. Where type is missing, other
// keywords imply it. Other keywords of the standard that would refuse documents are refused by name and place; words
// that the standard does not know are notes and ignored, as it says.
//
// Immutable; safe to use from several threads. Holds what its matchers have found out, up to about 16 MB.
class Grammar {
 public:
  // A document that the schema accepts. Errors name the place in the schema and the keyword.
  static Result<std::shared_ptr<const Grammar>> json_schema(std::shared_ptr<const GrammarVocabulary> vocabulary,
                                                            const nlohmann::ordered_json& schema);
  // Any JSON object.
  static std::shared_ptr<const Grammar> json_object(std::shared_ptr<const GrammarVocabulary> vocabulary);
  // A call of one of the tools or, with `parallel`, up to 32 calls, in the model's own form, with arguments that the
  // tool's schema accepts:
  //
  //   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
  //
  // or, with a schema of an answer, a document that it accepts instead of any call (its strings then hold no marker of
  // this form either).
  //
  // Strings are written as they are, and hold no marker of this form; other values are JSON. Errors: no tools, a name
  // that cannot be written, a tokenizer without the two control tokens, and what json_schema refuses, for the
  // parameters of strict tools.
  static Result<std::shared_ptr<const Grammar>> tool_calls(std::shared_ptr<const GrammarVocabulary> vocabulary,
                                                           std::span<const GrammarTool> tools, bool parallel,
                                                           const nlohmann::ordered_json* answer = nullptr);

  const GrammarVocabulary& vocabulary() const;

  // For make_shared.
  struct Shared;
  explicit Grammar(std::unique_ptr<Shared> shared);
  ~Grammar();

 private:
  friend class GrammarMatcher;
  std::unique_ptr<Shared> shared_;
};

// How far an answer has come in its grammar. Cheap to copy, as speculation needs it. One thread at a time; matchers of
// one grammar may be used in different threads.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);

  // Sets bit id % 64 of word id / 64 for each token that may come next, stop tokens included, and clears all others.
  // At least one is set. REQUIRES: bits.size() ≥ vocabulary().words().
  void mask(std::span<uint64_t> bits);
  // Takes the next token. False, and nothing changes, if it is not allowed. A stop token changes nothing.
  bool accept(int32_t id);
  // Whether the answer may end here: whether stop tokens are allowed.
  bool can_end() const;

 private:
  void move_on();

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<GrammarAutomaton> automaton_;
  uint32_t state_;
};

}  // namespace calla
