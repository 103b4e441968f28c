#pragma once

#include <string>
#include <string_view>

namespace calla {

// A name taken from a file, made safe for a one-line message on a terminal: control bytes and bytes that are not ASCII
// become \xNN, and long names are cut.
std::string printable(std::string_view name);

}  // namespace calla
