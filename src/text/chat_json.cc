#include "text/chat_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

// Builds a document from nlohmann's parse events. Their own builder would lose big integers and look every new key up
// by a linear search, which makes an object with many keys quadratic.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }
  size_t error_position() const { return error_position_; }

  bool null() override { return add(nullptr); }
  bool boolean(bool v) override { return add(v); }
  bool number_integer(number_integer_t v) override { return add(v); }
  bool number_unsigned(number_unsigned_t v) override { return add(v); }
  bool number_float(number_float_t v, const string_t& digits) override {
    if (digits.find_first_of(".eE") != string_t::npos) return add(v);
    return add(Json::binary({digits.begin(), digits.end()}));
  }
  bool string(string_t& v) override { return add(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool key(string_t& v) override {
    open_.back().key = std::move(v);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    error_ = dynamic_cast<const Json::out_of_range*>(&e) != nullptr ? "a number is out of range" : "not valid JSON";
    error_position_ = position;
    return false;
  }

 private:
  struct Open {
    Json value;
    std::string key;                                // the key whose value comes next, in an object
    std::unordered_map<std::string, size_t> index;  // of the keys so far
  };

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Open& parent = open_.back();
    if (parent.value.is_array()) {
      parent.value.get_ref<Json::array_t&>().push_back(std::move(value));
      return true;
    }
    Json::object_t::Container& members = parent.value.get_ref<Json::object_t&>();
    const auto [known, inserted] = parent.index.emplace(parent.key, members.size());
    if (inserted) {
      members.emplace_back(std::move(parent.key), std::move(value));
    } else {
      members[known->second].second = std::move(value);
    }
    return true;
  }

  bool open(Json container) {
    if (open_.size() == kMaxJsonDepth) {
      error_ = fmt::format("nested deeper than {} levels", kMaxJsonDepth);
      return false;
    }
    open_.push_back({std::move(container), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  Json root_;
  std::vector<Open> open_;
  std::string error_;
  size_t error_position_ = 0;
};

// Python's repr(float): the shortest digits that read back to the same value; positional for 1e-4 <= |v| < 1e16,
// otherwise with an exponent of at least two digits; always with a point or an exponent.
void append_float(std::string& out, double v) {
  if (!std::isfinite(v)) {
    out += std::isnan(v) ? "NaN" : v < 0 ? "-Infinity" : "Infinity";
    return;
  }
  char buffer[32];  // "-d.dddddddddddddddde-xxx"
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) {
    out += text;  // to_chars writes the exponent as Python does
    return;
  }
  if (text.front() == '-') out += '-';
  std::string digits(1, text[text.front() == '-' ? 1 : 0]);
  if (const size_t point = text.find('.'); point != text.npos) digits += text.substr(point + 1, e - point - 1);
  if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    return;
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole + 1) digits.resize(whole + 1, '0');  // 1e15 → 1000000000000000.0
  out.append(digits, 0, whole).append(".").append(digits, whole);
}

void append_string(std::string& out, std::string_view s) {
  out += '"';
  append_json_letters(out, s);
  out += '"';
}

void append(std::string& out, const Json& v) {
  switch (v.type()) {
    case Json::value_t::null:
    case Json::value_t::discarded:
      out += "null";
      break;
    case Json::value_t::boolean:
      out += v.get<bool>() ? "true" : "false";
      break;
    case Json::value_t::number_integer:
      out += fmt::to_string(v.get<int64_t>());
      break;
    case Json::value_t::number_unsigned:
      out += fmt::to_string(v.get<uint64_t>());
      break;
    case Json::value_t::number_float:
      append_float(out, v.get<double>());
      break;
    case Json::value_t::binary:
      out.append(v.get_binary().begin(), v.get_binary().end());
      break;  // a big integer's digits
    case Json::value_t::string:
      append_string(out, v.get_ref<const std::string&>());
      break;
    case Json::value_t::array: {
      const char* separator = "[";
      for (const Json& item : v) {
        out += separator;
        append(out, item);
        separator = ", ";
      }
      out += v.empty() ? "[]" : "]";
      break;
    }
    case Json::value_t::object: {
      const char* separator = "{";
      for (const auto& [key, item] : v.items()) {
        out += separator;
        append_string(out, key);
        out += ": ";
        append(out, item);
        separator = ", ";
      }
      out += v.empty() ? "{}" : "}";
      break;
    }
  }
}

}  // namespace

void append_json_letters(std::string& out, std::string_view s) {
  for (const char c : s) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

Result<Json> parse_json(std::string_view text) {
  Builder builder;
  if (Json::sax_parse(text, &builder)) return builder.take();
  if (builder.error_position() == 0) return invalid(builder.error());
  const std::string_view before = text.substr(0, builder.error_position() - 1);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return invalid(fmt::format("{} at line {}, column {}", builder.error(), line, before.size() - line_start + 1));
}

std::string python_json(const Json& value) {
  std::string out;
  append(out, value);
  return out;
}

bool deeper_than(const Json& value, int depth) {
  if (!value.is_structured()) return false;
  if (depth == 0) return true;
  return std::any_of(value.begin(), value.end(), [&](const Json& item) { return deeper_than(item, depth - 1); });
}

}  // namespace calla
