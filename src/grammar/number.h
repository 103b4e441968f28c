#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "grammar/program.h"

namespace calla {

// A decimal number, exactly: ± whole.fraction × 1.
struct Decimal {
  bool negative = false;
  std::string whole;     // without leading zeros; "0" for none
  std::string fraction;  // without trailing zeros
  bool zero() const { return whole == "0" && fraction.empty(); }
};
int compare(const Decimal& a, const Decimal& b);  // −1, 0 or 1
// REQUIRES: a number as parse_json gives it.
Decimal decimal_of(const nlohmann::ordered_json& number);

struct NumberBounds {
  struct Bound {
    Decimal value;
    bool exclusive = false;
  };
  bool integer = false;
  std::optional<Bound> least, most;
  std::optional<Decimal> multiple_of;
};

// JSON numbers within the bounds, in digits without an exponent if there are any, as Grammar describes. Errors: bounds
// that are out of reach (beyond ±1e15, of integers without multipleOf ±1e18), a multipleOf that is not above 0 or has
// more than 1,000 remainders.
Result<uint32_t> number_node(ProgramBuilder& builder, const NumberBounds& bounds, uint32_t next);

}  // namespace calla
