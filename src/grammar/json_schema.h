#pragma once

// From JSON Schema to a grammar's program. grammar.h says which schemas, and which of their documents.

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "grammar/json_parts.h"

namespace calla {

// One schema document. Everything that parts.write_rules() writes must be written while it lives. Errors name the place
// as in "#/properties/a/minimum".
class SchemaCompiler {
 public:
  // name: before the place, in errors and in the names of rules. root must outlive the compiler.
  // strict: what cannot be expressed is an error; otherwise it is left out.
  SchemaCompiler(JsonParts& parts, const nlohmann::ordered_json& root, std::string name, bool strict);
  ~SchemaCompiler();
  SchemaCompiler(const SchemaCompiler&) = delete;
  SchemaCompiler& operator=(const SchemaCompiler&) = delete;

  // A value that the schema accepts.
  Result<uint32_t> root_value(uint32_t next);
  // The parameters of a tool call: of the object that the root describes, its properties between tags.
  Result<uint32_t> root_parameters(uint32_t next);

 private:
  using Json = nlohmann::ordered_json;
  // A schema and where it stands.
  struct Place {
    const Json* schema;
    std::string pointer;
  };
  struct Property {
    std::string name;
    Place value;
    bool required;
  };
  struct Object {
    std::vector<Property> properties;
    std::optional<Place> others;  // the values of further properties
  };
  using Types = uint8_t;

  tl::unexpected<Error> error(const Place& place, std::string_view keyword, std::string_view what) const;
  Place child(const Place& place, std::string_view keyword) const;
  Place child(const Place& place, std::string_view keyword, size_t index) const;

  Result<uint32_t> value(const Place& place, ValueForm form, uint32_t next);
  Result<uint32_t> exact_value(const Place& place, ValueForm form, uint32_t next);
  Place loosened(const Place& place);
  Result<uint32_t> choice(const Place& place, std::string_view keyword, ValueForm form, uint32_t next);
  Result<uint32_t> constants(const Place& place, ValueForm form, uint32_t next);
  Result<uint32_t> typed(const Place& place, Types type, ValueForm form, uint32_t next);
  Result<uint32_t> string(const Place& place, ValueForm form, uint32_t next);
  Result<uint32_t> number(const Place& place, bool integer, uint32_t next);
  Result<uint32_t> object(const Place& place, uint32_t next);
  Result<uint32_t> array(const Place& place, uint32_t next);
  Result<Object> read_object(const Place& place) const;

  Result<void> check_keywords(const Place& place) const;
  Result<Types> types(const Place& place) const;
  Result<Place> resolve(const Place& place) const;
  // The place itself, or what its chain of references leads to.
  Result<Place> resolved(Place place) const;
  Result<uint32_t> size(const Place& place, std::string_view keyword, uint32_t otherwise) const;
  // The two schemas as one that accepts what both accept.
  Result<Place> merged(const Place& a, const Place& b);
  Result<void> check_disjoint(const Place& place, const std::vector<Place>& parts) const;

  JsonParts& parts_;
  ProgramBuilder& b_;
  const Json& root_;
  std::string name_;
  const bool strict_;
  std::map<std::pair<const Json*, ValueForm>, uint32_t> references_;
  std::map<std::pair<const Json*, bool>, uint32_t> containers_;  // arrays and objects
  std::map<const Json*, const Json*> loosened_;
  struct Made;
  std::deque<Made> made_;  // merged schemas
  size_t merged_values_ = 0;
  int merge_depth_ = 0;
};

}  // namespace calla
