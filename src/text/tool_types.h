#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace calla {

// Which JSON types the tools' schemas allow for each parameter, for reading the values of calls, which the model writes
// without quotes. Immutable; safe to use from several threads.
class ToolTypes {
 public:
  using Mask = uint8_t;
  static constexpr Mask kString = 1, kNumber = 2, kBoolean = 4, kObject = 8, kArray = 16, kNull = 32;

  ToolTypes() = default;
  // tools: as in Conversation::tools. A text that is no tool is passed over. Follows local $ref, anyOf, oneOf, allOf,
  // enum and const, through a few thousand schemas at most: what lies beyond counts as saying nothing.
  explicit ToolTypes(const std::vector<std::string>& tools);

  bool empty() const { return tools_.empty(); }
  bool knows(std::string_view tool) const { return tools_.contains(std::string(tool)); }
  bool knows(std::string_view tool, std::string_view parameter) const;
  // 0: the schema says nothing of types, or there is no such tool or parameter.
  Mask of(std::string_view tool, std::string_view parameter) const;

 private:
  struct Tool {
    std::unordered_map<std::string, Mask> parameters;
    Mask others = 0;  // additionalProperties
  };
  std::unordered_map<std::string, Tool> tools_;
};

}  // namespace calla
