#include "grammar/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "text/chat_json.h"

namespace calla {
namespace {

// What 64-bit floating point tells apart for certain: two decimals of so many digits are never the same double.
constexpr int kDigits = 15;
constexpr int kIntegerDigits = 19;
constexpr int kMaxRemainders = 1000;

uint32_t digit(ProgramBuilder& b, uint32_t next) {
  return b.byte_range('0', '9', next);
}

// From `min` to `max` digits.
uint32_t digits(ProgramBuilder& b, int min, int max, uint32_t next) {
  uint32_t node = next;
  for (int i = max; i > 0; --i) {
    node = digit(b, node);
    if (i > min) node = b.split({node, next});
  }
  return node;
}

uint32_t without_leading_zero(ProgramBuilder& b, int max, uint32_t next) {
  return b.bytes({{'0', '0', next}, {'1', '9', digits(b, 0, max - 1, next)}});
}

uint32_t any_integer(ProgramBuilder& b, uint32_t next) {
  const uint32_t positive = b.byte_range('1', '9', digits(b, 0, kIntegerDigits - 1, next));
  return b.split({b.byte_range('0', '0', next), positive, b.literal("-", positive)});
}

// Exponents to 289: with 21 digits before the point, still a double.
uint32_t any_number(ProgramBuilder& b, uint32_t next) {
  const uint32_t exponent = b.split({digits(b, 1, 2, next), b.byte_range('1', '1', digits(b, 2, 2, next)),
                                     b.byte_range('2', '2', b.byte_range('0', '8', digit(b, next))),
                                     b.byte_range('0', '0', digits(b, 2, 2, next))});
  const uint32_t sign = b.bytes({{'+', '+', exponent}, {'-', '-', exponent}});
  const uint32_t e = b.split({exponent, sign});
  const uint32_t tail = b.split({next, b.bytes({{'e', 'e', e}, {'E', 'E', e}})});
  const uint32_t fraction = b.split({tail, b.literal(".", digits(b, 1, 24, tail))});
  const uint32_t whole = without_leading_zero(b, 21, fraction);
  return b.split({whole, b.literal("-", whole)});
}

int compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int c = a.whole.compare(b.whole); c != 0) return c < 0 ? -1 : 1;
  const int c = a.fraction.compare(b.fraction);  // without trailing zeros the order of texts is that of numbers
  return c < 0 ? -1 : c > 0 ? 1 : 0;
}

// Writes the magnitudes between two bounds, digit by digit. While the digits so far are those of a bound, the next one
// must not pass it.
class Magnitudes {
 public:
  Magnitudes(ProgramBuilder& builder, const NumberBounds::Bound& least, const std::optional<NumberBounds::Bound>& most,
             int max_whole, std::optional<int> max_fraction, int modulus, bool whole_only, uint32_t next)
      : b_(builder),
        least_(least),
        most_(most),
        max_whole_(max_whole),
        max_fraction_(max_fraction),
        modulus_(modulus),
        whole_only_(whole_only),
        next_(next) {}

  uint32_t write() {
    std::vector<uint32_t> ways;
    const auto least_size = static_cast<int>(least_.value.whole.size());
    const auto most_size = most_ ? static_cast<int>(most_->value.whole.size()) : max_whole_ + 1;
    for (int size = least_size; size <= std::min(most_size, max_whole_) && !b_.full(); ++size) {
      length_ = size;
      ways.push_back(whole(size, size == least_size, size == most_size, 0));
    }
    return b_.split(ways);
  }

 private:
  // Digits after the point for a number of this length.
  int fraction_size() const { return max_fraction_ ? *max_fraction_ : std::max(0, kDigits - length_); }
  // The remainder after one more digit.
  int after(int remainder, int d) const { return (remainder * 10 + d) % modulus_; }

  uint32_t whole(int left, bool low, bool high, int remainder) {
    if (left == 0) return point(low, high, remainder);
    // Once free of both bounds, only what is left matters.
    const auto key =
        std::tuple(low || high ? length_ : 0, fraction_size(), left, 0, low, high, remainder, left == length_);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    const auto at = static_cast<size_t>(length_ - left);
    const int from = low ? least_.value.whole[at] - '0' : 0;
    const int to = high ? most_->value.whole[at] - '0' : 9;
    std::vector<ByteEdge> edges;
    for (int d = from; d <= to && !b_.full(); ++d) {
      if (d == 0 && left == length_ && length_ > 1) continue;
      add(edges, d, whole(left - 1, low && d == from, high && d == to, after(remainder, d)));
    }
    return known_[key] = b_.bytes(edges);
  }

  uint32_t point(bool low, bool high, int remainder) {
    const auto key = std::tuple(low || high ? length_ : 0, fraction_size(), 0, 0, low, high, remainder, false);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    std::vector<uint32_t> ways;
    if (may_end(0, low, high, remainder)) ways.push_back(next_);
    if (!whole_only_ && fraction_size() > 0) ways.push_back(b_.literal(".", fraction(0, low, high, remainder)));
    return known_[key] = b_.split(ways);
  }

  uint32_t fraction(int done, bool low, bool high, int remainder) {
    if (done == fraction_size()) return done > 0 && may_end(done, low, high, remainder) ? next_ : b_.dead();
    const auto key = std::tuple(low || high ? length_ : 0, fraction_size(), -1, done, low, high, remainder, false);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    const int from = low ? digit_at(least_.value.fraction, done) : 0;
    const int to = high ? digit_at(most_->value.fraction, done) : 9;
    std::vector<ByteEdge> edges;
    for (int d = from; d <= to && !b_.full(); ++d) {
      add(edges, d, fraction(done + 1, low && d == from, high && d == to, after(remainder, d)));
    }
    uint32_t node = b_.bytes(edges);
    if (done > 0 && may_end(done, low, high, remainder)) node = b_.split({node, next_});
    return known_[key] = node;
  }

  static int digit_at(const std::string& fraction, int i) {
    return i < static_cast<int>(fraction.size()) ? fraction[static_cast<size_t>(i)] - '0' : 0;
  }

  // Whether the number may end after `done` digits of its fraction, all further ones being zeros.
  bool may_end(int done, bool low, bool high, int remainder) const {
    const auto more = [&](const Decimal& d) { return static_cast<int>(d.fraction.size()) > done; };
    if (low && (more(least_.value) || least_.exclusive)) return false;
    if (high && !more(most_->value) && most_->exclusive) return false;
    if (modulus_ > 1) {
      for (int i = done; i < max_fraction_.value_or(0); ++i) remainder = after(remainder, 0);
      if (remainder != 0) return false;
    }
    return true;
  }

  static void add(std::vector<ByteEdge>& edges, int d, uint32_t to) {
    const auto c = static_cast<uint8_t>('0' + d);
    if (!edges.empty() && edges.back().to == to) {
      edges.back().hi = c;
    } else {
      edges.push_back({c, c, to});
    }
  }

  ProgramBuilder& b_;
  const NumberBounds::Bound& least_;
  const std::optional<NumberBounds::Bound>& most_;
  int max_whole_;
  std::optional<int> max_fraction_;  // not set: what kDigits leaves
  int modulus_;
  bool whole_only_;
  uint32_t next_;
  int length_ = 0;
  std::map<std::tuple<int, int, int, int, bool, bool, int, bool>, uint32_t> known_;
};

}  // namespace

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? compare_magnitudes(b, a) : compare_magnitudes(a, b);
}

Decimal decimal_of(const nlohmann::ordered_json& number) {
  std::string text = python_json(number);
  Decimal out;
  if (text.starts_with('-')) {
    out.negative = true;
    text.erase(0, 1);
  }
  int exponent = 0;
  if (const size_t e = text.find('e'); e != text.npos) {
    exponent = std::stoi(text.substr(e + 1));
    text.resize(e);
  }
  std::string fraction;
  if (const size_t point = text.find('.'); point != text.npos) {
    fraction = text.substr(point + 1);
    text.resize(point);
  }
  for (; exponent > 0; --exponent) {
    text += fraction.empty() ? '0' : fraction.front();
    fraction.erase(0, fraction.empty() ? 0 : 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(0, 1, text.empty() ? '0' : text.back());
    if (!text.empty()) text.pop_back();
  }
  text.erase(0, std::min(text.find_first_not_of('0'), text.size()));
  fraction.resize(fraction.find_last_not_of('0') + 1);
  out.whole = text.empty() ? "0" : text;
  out.fraction = fraction;
  if (out.zero()) out.negative = false;
  return out;
}

Result<uint32_t> number_node(ProgramBuilder& b, const NumberBounds& bounds, uint32_t next) {
  if (!bounds.least && !bounds.most && !bounds.multiple_of) {
    return bounds.integer ? any_integer(b, next) : any_number(b, next);
  }
  int modulus = 1;
  std::optional<int> max_fraction;
  if (bounds.integer) max_fraction = 0;
  if (bounds.multiple_of) {
    const Decimal& m = *bounds.multiple_of;
    if (m.negative || m.zero()) return invalid("multipleOf must be above 0");
    // With the point moved to the end of multipleOf, remainders are of whole numbers. Of an integer's multiples those
    // count whose fraction is zero.
    const std::string scaled = (m.whole == "0" ? "" : m.whole) + m.fraction;
    if (scaled.size() > 6 || m.fraction.size() > 6 || std::stoi(scaled) > kMaxRemainders) {
      return invalid(fmt::format("multipleOf has more than {} remainders", kMaxRemainders));
    }
    modulus = std::stoi(scaled);
    max_fraction = static_cast<int>(m.fraction.size());
  }
  const bool exact = bounds.integer && !bounds.multiple_of;  // who divides doubles needs kDigits for integers, too
  const int max_whole = exact ? kIntegerDigits - 1 : kDigits - max_fraction.value_or(0);
  // Bounds out of reach on the far side are none; on the near side nothing is left.
  Decimal limit{false, "1", ""};
  limit.whole.append(static_cast<size_t>(max_whole), '0');
  auto least = bounds.least, most = bounds.most;
  const auto beyond = [&](const auto& bound) { return bound && compare_magnitudes(bound->value, limit) >= 0; };
  if (beyond(least)) {
    if (!least->value.negative) return invalid(fmt::format("a least value of 1e{} or more is out of reach", max_whole));
    least.reset();
  }
  if (beyond(most)) {
    if (most->value.negative)
      return invalid(fmt::format("a largest value of -1e{} or less is out of reach", max_whole));
    most.reset();
  }
  const NumberBounds::Bound zero{Decimal{false, "0", ""}, false}, above_zero{zero.value, true};
  const auto flipped = [](std::optional<NumberBounds::Bound> bound) {
    if (bound) bound->value.negative = false;
    return bound;
  };
  const auto magnitudes = [&](const NumberBounds::Bound& from, const std::optional<NumberBounds::Bound>& to) {
    if (to && compare_magnitudes(from.value, to->value) > 0) return b.dead();
    return Magnitudes(b, from, to, max_whole, max_fraction, modulus, bounds.integer, next).write();
  };
  std::vector<uint32_t> ways;
  if (!most || !most->value.negative) {
    ways.push_back(magnitudes(least && !least->value.negative ? *least : zero, most));
  }
  if (!least || least->value.negative) {
    const auto nearest = most && most->value.negative ? *flipped(most) : above_zero;
    ways.push_back(b.literal("-", magnitudes(nearest, flipped(least))));
  }
  return b.split(ways);
}

}  // namespace calla
