#include "text/json_read.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

namespace calla {

using Json = nlohmann::ordered_json;

const Json& json_member(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

std::string_view json_text(const Json& value) {
  return value.is_string() ? std::string_view(value.get_ref<const std::string&>()) : std::string_view();
}

std::string_view json_type_name(const Json& v) {
  if (v.is_number() || v.is_binary()) return "a number";  // binary: a big integer
  if (v.is_string()) return "a string";
  if (v.is_boolean()) return "a boolean";
  if (v.is_array()) return "an array";
  if (v.is_object()) return "an object";
  return "null";
}

tl::unexpected<Error> wrong_type(std::string_view path, std::string_view expected, const Json& got) {
  return invalid(fmt::format("{} must be {}, not {}", path, expected, json_type_name(got)));
}

Result<void> each_object(const Json& array, std::string_view path,
                         const std::function<Result<void>(const Json&, const std::string&)>& read) {
  if (array.is_null()) return {};
  if (!array.is_array()) return wrong_type(path, "an array", array);
  for (size_t i = 0; i < array.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!array[i].is_object()) return wrong_type(at, "an object", array[i]);
    CALLA_TRY(read(array[i], at));
  }
  return {};
}

}  // namespace calla
