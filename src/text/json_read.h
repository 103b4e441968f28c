#pragma once

// Reading requests: members that may be absent, and errors that name the place.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace calla {

// The member, or null where there is none or `object` is no object: absent and null mean the same in requests.
const nlohmann::ordered_json& json_member(const nlohmann::ordered_json& object, const char* key);

// A string's letters; "" for anything else.
std::string_view json_text(const nlohmann::ordered_json& value);

// "a number", "an array", …
std::string_view json_type_name(const nlohmann::ordered_json& value);

// "PATH must be EXPECTED, not a number".
[[nodiscard]] tl::unexpected<Error> wrong_type(std::string_view path, std::string_view expected,
                                               const nlohmann::ordered_json& got);

// Calls read(element, "PATH[i]") for every element of an array of objects, to the first error. Null has no elements.
Result<void> each_object(
    const nlohmann::ordered_json& array, std::string_view path,
    const std::function<Result<void>(const nlohmann::ordered_json& element, const std::string& path)>& read);

}  // namespace calla
