#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/result.h"

namespace calla {

// Strict JSON into a tree: one object, no duplicate keys, no nesting beyond 32 levels, valid UTF-8. Throws nothing.
// `name` (a file) starts every message.
Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view name);

}  // namespace calla
