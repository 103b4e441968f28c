#pragma once

#include <string>

#include "bench/report.h"

namespace calla {

// Two charts beside each other, decode and prefill in tokens a second against context, each with the ceiling and a
// peer's points where there are any: a self-contained SVG, readable on light and dark pages. Rows of the matrix only
// (depth 0); a refused row is a hollow point. REQUIRES: at least one such row.
std::string report_svg(const BenchReport& report);

}  // namespace calla
