#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "eval/summary.h"

namespace calla {

// A summary for programs: an interval is {"value", "low", "high"}, an unknown bound null.
nlohmann::ordered_json to_json(const Summary& summary);
// The same for people: a line each, and the methods of the intervals.
std::string to_table(const Summary& summary);

}  // namespace calla
