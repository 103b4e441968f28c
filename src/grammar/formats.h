#pragma once

#include <string_view>

namespace calla {

// The regular expression of a format of JSON Schema; empty for formats that say nothing here. Each text that it matches
// is of the format, but not each text of the format matches: seconds have up to 9 digits after the point and are below
// 60, hosts have up to four labels, e-mail addresses no quotes or comments.
std::string_view format_pattern(std::string_view format);

}  // namespace calla
