#include "grammar/number.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tests/grammar/grammars.h"

namespace calla::grammar_test {
namespace {

// Bounds and texts are thousandths, so that doubles decide nothing.
std::string decimal(int64_t thousandths, int digits) {
  const int64_t whole = std::abs(thousandths) / 1000, fraction = std::abs(thousandths) % 1000;
  std::string out = fmt::format("{}{}.{:03}", thousandths < 0 ? "-" : "", whole, fraction);
  out.resize(out.size() - static_cast<size_t>(3 - digits));
  if (digits == 0) out.pop_back();
  return out;
}

TEST(Number, KeepsToItsBounds) {
  Random random(5);
  for (int i = 0; i < 120; ++i) {
    const bool integer = random.below(2) == 0, least_open = random.below(2) == 0, most_open = random.below(2) == 0;
    const bool has_least = random.below(4) != 0, has_most = random.below(4) != 0;
    const int64_t scale = random.below(2) == 0 ? 1000 : 125;
    const int64_t least = (static_cast<int64_t>(random.below(500)) - 250) * scale;
    const int64_t most = least + static_cast<int64_t>(random.below(300)) * scale;
    const int64_t multiple =
        random.below(3) == 0 ? static_cast<int64_t>(random.below(40) + 1) * (integer ? 1000 : 250) : 0;
    Json schema{{"type", integer ? "integer" : "number"}};
    if (has_least) schema[least_open ? "exclusiveMinimum" : "minimum"] = static_cast<double>(least) / 1000;
    if (has_most) schema[most_open ? "exclusiveMaximum" : "maximum"] = static_cast<double>(most) / 1000;
    if (multiple != 0) schema["multipleOf"] = static_cast<double>(multiple) / 1000;
    const auto g = Grammar::json_schema(vocabulary(), schema);
    const auto allowed_value = [&](int64_t v) {
      return (!has_least || (least_open ? v > least : v >= least)) &&
             (!has_most || (most_open ? v < most : v <= most)) && (multiple == 0 || v % multiple == 0);
    };
    // Of a multiple, no more digits than multipleOf has.
    const int most_digits = integer ? 0 : multiple == 0 ? 3 : multiple % 1000 == 0 ? 0 : multiple % 500 == 0 ? 1 : 2;
    bool any = false;
    for (int64_t v = -300'000; v <= 600'000; v += 125) {
      for (int digits = 0; digits <= most_digits; ++digits) {
        if (v % (digits == 0 ? 1000 : digits == 1 ? 100 : digits == 2 ? 10 : 1) != 0) continue;
        const std::string text = decimal(v, digits);
        const bool expected = allowed_value(v);
        any |= expected;
        if (!g) continue;
        ASSERT_EQ(accepts(*g, text), expected) << schema << " on " << text;
      }
    }
    // Nothing but an empty range is refused.
    EXPECT_TRUE(g || !any) << schema;
  }
}

TEST(Number, ReadsDecimalsExactly) {
  const auto text = [](std::string_view json) {
    const Decimal d = decimal_of(*parse_json(json));
    return (d.negative ? "-" : "") + d.whole + "." + d.fraction;
  };
  EXPECT_EQ(text("0"), "0.");
  EXPECT_EQ(text("-0.0"), "0.");
  EXPECT_EQ(text("-12.50"), "-12.5");
  EXPECT_EQ(text("1e21"), "1000000000000000000000.");
  EXPECT_EQ(text("-1.25e-7"), "-0.000000125");
  EXPECT_EQ(text("123456789012345678901234567890"), "123456789012345678901234567890.");
}

}  // namespace
}  // namespace calla::grammar_test
