#include "formats/fields.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/printable.h"

namespace calla {

using Json = nlohmann::json;

namespace {
// The value as it stands in the file, for messages.
std::string shown(const Json& value) {
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) return INT64_MAX;
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}
}  // namespace

const Json* Fields::find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::refuse(std::string_view key, std::string_view what, Error::Code code) {
  if (!error_) error_ = Error{code, fmt::format("{}{} {}", path_, key, what)};
}

void Fields::wrong_type(std::string_view key, std::string_view expected) {
  refuse(key, fmt::format("is {}, expected {}", shown(*find(key)), expected));
}

int Fields::integer(std::string_view key, std::optional<int> fallback, int min, int max) {
  const Json* value = find(key);
  if (value == nullptr) {
    if (!fallback) refuse(key, "is missing");
    return fallback.value_or(min);
  }
  const auto n = as_integer(*value);
  if (!n || *n < min || *n > max) {
    wrong_type(key, fmt::format("an integer from {} to {}", min, max));
    return min;
  }
  return static_cast<int>(*n);
}

int Fields::width(std::string_view key, int max) {
  const int n = integer(key, std::nullopt, 64, max);
  if (n % 64 != 0) refuse(key, fmt::format("is {}, expected a multiple of 64", n));
  return n;
}

double Fields::real(std::string_view key, double fallback, double min, double max) {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  const double x = value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(x >= min && x <= max)) {
    wrong_type(key, fmt::format("a number from {} to {}", min, max));
    return fallback;
  }
  return x;
}

bool Fields::boolean(std::string_view key, bool fallback) {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    wrong_type(key, "true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string Fields::text(std::string_view key, std::string_view fallback) {
  const Json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) {
    wrong_type(key, "a string");
    return std::string(fallback);
  }
  return value->get<std::string>();
}

std::vector<int32_t> Fields::ids(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  std::vector<int32_t> ids;
  const auto add = [&](const Json& item) {
    const auto n = as_integer(item);
    if (n && *n >= 0 && *n <= INT32_MAX) {
      ids.push_back(static_cast<int32_t>(*n));
    } else {
      wrong_type(key, "a token id or a list of token ids");
    }
  };
  if (value->is_array()) {
    for (const Json& item : *value) add(item);
  } else {
    add(*value);
  }
  return ids;
}

const Json* Fields::object(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr || value->is_object()) return value;
  wrong_type(key, "an object");
  return nullptr;
}

void Fields::only(std::string_view key, bool supported) {
  if (boolean(key, supported) != supported) {
    refuse(key, fmt::format("is {}, only {} is supported", !supported, supported), Error::Code::kUnsupported);
  }
}

void Fields::only(std::string_view key, const char* supported) {
  const std::string value = text(key, supported);
  if (value != supported) {
    refuse(key, fmt::format("is \"{}\", only \"{}\" is supported", printable(value), supported),
           Error::Code::kUnsupported);
  }
}

void Fields::only(std::string_view key, int supported) {
  const int value = integer(key, supported, std::numeric_limits<int>::min(), std::numeric_limits<int>::max());
  if (value != supported)
    refuse(key, fmt::format("is {}, only {} is supported", value, supported), Error::Code::kUnsupported);
}

}  // namespace calla
