#pragma once

// The parts that grammars of JSON, and of values between a tool call's tags, are made of.

#include <cstdint>
#include <deque>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "grammar/char_dfa.h"
#include "grammar/program.h"

namespace calla {

// How a value is written.
enum class ValueForm : uint8_t {
  kJson,
  kTagged,  // strings as they are, everything else as JSON
};

// Writes parts into a program, from back to front. Parts that everybody needs are rules, written once.
class JsonParts {
 public:
  using Writer = std::function<Result<uint32_t>(uint32_t end)>;

  // allowed: if set, what the characters of a string may spell. REQUIRES: all of its states accept.
  JsonParts(ProgramBuilder& builder, std::optional<CharDfa> allowed);
  JsonParts(const JsonParts&) = delete;
  JsonParts& operator=(const JsonParts&) = delete;

  ProgramBuilder& builder() { return b_; }
  // A rule to be called at once; write_rules writes it.
  uint32_t add_rule(std::string name, bool container, Writer writer, bool nullable = false);
  // Writes the rules that were added, and those that they add. Stops where the program is full.
  Result<void> write_rules();

  uint32_t space(uint32_t next);        // as Grammar describes the layout
  uint32_t after_colon(uint32_t next);  // none or one space
  uint32_t comma(uint32_t next) { return b_.literal(",", space(next)); }
  uint32_t any_value(uint32_t next);
  uint32_t any_object(uint32_t next);
  uint32_t any_number(bool integer, uint32_t next);

  // A string of min to max characters.
  uint32_t string(ValueForm form, uint32_t min, uint32_t max, uint32_t next);
  // A string that the automaton accepts.
  Result<uint32_t> string(ValueForm form, const CharDfa& dfa, uint32_t next);
  // This value, which is an object or an array.
  uint32_t constant(const nlohmann::ordered_json& value, uint32_t next);
  // The text of any other value.
  static std::string scalar(ValueForm form, const nlohmann::ordered_json& value);
  // A name with its colon.
  uint32_t key(std::string_view name, uint32_t next);

 private:
  // The object or array whose elements `elements` writes, given what follows the last one.
  uint32_t container(char open, char close, bool may_be_empty, const std::function<uint32_t(uint32_t next)>& elements,
                     uint32_t next);
  uint32_t free_text(ValueForm form, uint32_t min, uint32_t max, uint32_t next);
  uint32_t any_escape(uint32_t next);

  ProgramBuilder& b_;
  std::optional<CharDfa> allowed_;
  std::deque<std::pair<uint32_t, Writer>> waiting_;
  std::optional<uint32_t> space_, value_, object_, array_, string_, number_, integer_;
};

}  // namespace calla
