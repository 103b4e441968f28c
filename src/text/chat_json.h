#pragma once

// JSON as the chat template's world writes it. The official template prints tools and arguments with Python's
// json.dumps(value, ensure_ascii=False), and the model was trained on those bytes; our parser keeps what they need.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace calla {

// Containers may be nested this deep, the outermost counted. Deeper input is refused, so everything that walks a value
// may recurse.
inline constexpr int kMaxJsonDepth = 64;

// Parses one JSON text. Keys keep their order; of equal keys the last value counts, in the first one's place (as in
// Python). An integer beyond 64 bits is kept exactly, as a `binary` value that holds its digits. Input that is not
// UTF-8, not JSON, deeper than kMaxJsonDepth or holds a number beyond a double is refused with its line and column.
// Time is linear in the input.
Result<nlohmann::ordered_json> parse_json(std::string_view text);

// The bytes of Python's json.dumps(value, ensure_ascii=False): ", " and ": " between, 1e+16 and 1e-07 for floats.
// REQUIRES: !deeper_than(value, kMaxJsonDepth), which holds for what parse_json returns.
std::string python_json(const nlohmann::ordered_json& value);

// Appends the text as it stands between the quotes of a JSON string. Text may be escaped piece by piece.
void append_json_letters(std::string& out, std::string_view text);

// Whether containers are nested deeper than `depth`. Recurses no further than that.
bool deeper_than(const nlohmann::ordered_json& value, int depth);

}  // namespace calla
