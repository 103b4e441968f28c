#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "grammar/formats.h"
#include "grammar/number.h"
#include "grammar/regex.h"
#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxProperties = 1000, kMaxEnum = 4096, kMaxMerged = 20'000;
constexpr int kMaxMergeDepth = 16, kMaxReferences = 64;
constexpr uint32_t kEndless = GrammarProgram::kEndless;

constexpr uint8_t kNull = 1, kBoolean = 2, kInteger = 4, kNumber = 8, kString = 16, kArray = 32, kObject = 64;
constexpr std::pair<std::string_view, uint8_t> kTypes[] = {
    {"object", kObject},   {"array", kArray},     {"string", kString}, {"number", kNumber},
    {"integer", kInteger}, {"boolean", kBoolean}, {"null", kNull}};

// Keywords that say something of one type only.
constexpr std::pair<std::string_view, uint8_t> kOfType[] = {
    {"properties", kObject}, {"required", kObject},         {"additionalProperties", kObject},
    {"items", kArray},       {"prefixItems", kArray},       {"minItems", kArray},
    {"maxItems", kArray},    {"minLength", kString},        {"maxLength", kString},
    {"pattern", kString},    {"format", kString},           {"minimum", kNumber},
    {"maximum", kNumber},    {"exclusiveMinimum", kNumber}, {"exclusiveMaximum", kNumber},
    {"multipleOf", kNumber}};

constexpr std::string_view kRefused[] = {"not",
                                         "if",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "dependencies",
                                         "patternProperties",
                                         "unevaluatedProperties",
                                         "unevaluatedItems",
                                         "contains",
                                         "minProperties",
                                         "maxProperties",
                                         "$dynamicRef",
                                         "$recursiveRef",
                                         "additionalItems"};

bool is_of_type(std::string_view keyword) {
  return std::ranges::any_of(kOfType, [&](const auto& k) { return k.first == keyword; });
}
// Whether the keyword can refuse a document.
bool asserts(std::string_view keyword) {
  constexpr std::string_view kOthers[] = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"};
  return is_of_type(keyword) || std::ranges::find(kOthers, keyword) != std::end(kOthers);
}

size_t assertions(const Json& schema) {
  return static_cast<size_t>(std::count_if(schema.items().begin(), schema.items().end(),
                                           [](const auto& item) { return asserts(item.key()); }));
}

std::string escaped(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

size_t count_values(const Json& value) {
  size_t n = 1;
  if (value.is_structured()) {
    for (const Json& item : value) n += count_values(item);
  }
  return n;
}

uint8_t type_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return kNull;
    case Json::value_t::boolean:
      return kBoolean;
    case Json::value_t::string:
      return kString;
    case Json::value_t::array:
      return kArray;
    case Json::value_t::object:
      return kObject;
    case Json::value_t::number_float: {
      const double v = value.get<double>();
      return v == std::floor(v) ? kInteger : kNumber;
    }
    default:
      return kInteger;
  }
}

// Whether a value of type `have` is of one of the types `wanted`.
bool is_of(uint8_t have, uint8_t wanted) {
  return (have & wanted) != 0 || (have == kInteger && (wanted & kNumber) != 0);
}

const Json kTrue = true, kFalse = false, kAnything = Json::object();

}  // namespace

struct SchemaCompiler::Made {
  Json schema;
};

SchemaCompiler::SchemaCompiler(JsonParts& parts, const Json& root, std::string name, bool strict)
    : parts_(parts), b_(parts.builder()), root_(root), name_(std::move(name)), strict_(strict) {}
SchemaCompiler::~SchemaCompiler() = default;

tl::unexpected<Error> SchemaCompiler::error(const Place& place, std::string_view keyword, std::string_view what) const {
  return invalid(fmt::format("{}{}{}{} {}", name_, place.pointer, keyword.empty() ? "" : "/", escaped(keyword), what));
}

SchemaCompiler::Place SchemaCompiler::child(const Place& place, std::string_view keyword) const {
  return {&place.schema->at(std::string(keyword)), fmt::format("{}/{}", place.pointer, escaped(keyword))};
}

SchemaCompiler::Place SchemaCompiler::child(const Place& place, std::string_view keyword, size_t index) const {
  return {&place.schema->at(std::string(keyword))[index], fmt::format("{}/{}/{}", place.pointer, keyword, index)};
}

Result<uint32_t> SchemaCompiler::root_value(uint32_t next) {
  return value({&root_, "#"}, ValueForm::kJson, next);
}

// ---- References ----

Result<SchemaCompiler::Place> SchemaCompiler::resolve(const Place& place) const {
  const Json& ref = place.schema->at("$ref");
  if (!ref.is_string()) return error(place, "$ref", "must be a string");
  const std::string text = ref.get<std::string>();
  if (!text.starts_with('#'))
    return error(place, "$ref", "must begin with #: only references inside the schema are followed");
  // The fragment is percent-encoded.
  std::string path;
  for (size_t i = 1; i < text.size(); ++i) {
    int byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16).ptr == text.data() + i + 3) {
      path += static_cast<char>(byte);
      i += 2;
    } else {
      path += text[i];
    }
  }
  if (!path.empty() && path[0] != '/')
    return error(place, "$ref", "must be # or begin with #/: anchors are not followed");
  Place out{&root_, "#" + path};
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('/', at + 1), path.size());
    std::string name;
    for (size_t i = at + 1; i < end; ++i) {
      if (path[i] == '~' && i + 1 < end) {
        name += path[++i] == '1' ? '/' : '~';
      } else {
        name += path[i];
      }
    }
    const Json* next = nullptr;
    if (out.schema->is_object()) {
      const auto it = out.schema->find(name);
      if (it != out.schema->end()) next = &*it;
    } else if (out.schema->is_array()) {
      size_t index = 0;
      const auto [end_of_number, failed] = std::from_chars(name.data(), name.data() + name.size(), index);
      if (failed == std::errc{} && end_of_number == name.data() + name.size() && index < out.schema->size()) {
        next = &(*out.schema)[index];
      }
    }
    if (next == nullptr) return error(place, "$ref", fmt::format("names \"{}\", which does not exist", text));
    out.schema = next;
    at = end;
  }
  return out;
}

Result<SchemaCompiler::Place> SchemaCompiler::resolved(Place place) const {
  for (int i = 0; i < kMaxReferences; ++i) {
    if (!place.schema->is_object() || !place.schema->contains("$ref")) return place;
    if (assertions(*place.schema) > 1) return error(place, "$ref", "is not supported beside other keywords here");
    CALLA_ASSIGN(place, resolve(place));
  }
  return error(place, "$ref", "leads through too many references, or to itself");
}

// ---- Keywords ----

Result<void> SchemaCompiler::check_keywords(const Place& place) const {
  if (!strict_) return {};
  for (const std::string_view keyword : kRefused) {
    if (place.schema->contains(keyword)) return error(place, keyword, "is not supported");
  }
  if (const auto it = place.schema->find("uniqueItems"); it != place.schema->end() && *it != false) {
    return error(place, "uniqueItems", "is not supported");
  }
  if (const auto it = place.schema->find("propertyNames"); it != place.schema->end()) {
    if (*it != true && *it != Json::object() && *it != Json({{"type", "string"}})) {
      return error(place, "propertyNames", "is not supported");
    }
  }
  return {};
}

Result<SchemaCompiler::Types> SchemaCompiler::types(const Place& place) const {
  const auto one = [](const Json& name) -> Types {
    if (!name.is_string()) return 0;
    for (const auto& [text, type] : kTypes) {
      if (name.get_ref<const std::string&>() == text) return type;
    }
    return 0;
  };
  const auto it = place.schema->find("type");
  if (it == place.schema->end()) {
    Types implied = 0;
    for (const auto& [keyword, type] : kOfType) {
      if (place.schema->contains(keyword)) implied |= type;
    }
    return implied;
  }
  Types out = 0;
  if (it->is_array()) {
    for (const Json& name : *it) {
      const Types type = one(name);
      if (type == 0) return error(place, "type", "must name types of JSON");
      out |= type;
    }
  } else {
    out = one(*it);
  }
  if (out == 0) return error(place, "type", "must be the name of a type of JSON, or a list of some");
  if ((out & kNumber) != 0) out &= static_cast<Types>(~kInteger);
  return out;
}

Result<uint32_t> SchemaCompiler::size(const Place& place, std::string_view keyword, uint32_t otherwise) const {
  const auto it = place.schema->find(keyword);
  if (it == place.schema->end()) return otherwise;
  if (!it->is_number() || type_of(*it) != kInteger || it->get<double>() < 0) {
    return error(place, keyword, "must be a whole number, 0 or more");
  }
  return static_cast<uint32_t>(std::min(it->get<double>(), 2147483647.0));
}

// ---- Values ----

Result<uint32_t> SchemaCompiler::value(const Place& place, ValueForm form, uint32_t next) {
  const int depth = merge_depth_;
  Result<uint32_t> exact = exact_value(place, form, next);
  if (exact || strict_) return exact;
  merge_depth_ = depth;
  return exact_value(loosened(place), form, next);
}

// What is left of a schema that cannot be expressed: types, and what is in an object; its parts are loosened on their
// own.
SchemaCompiler::Place SchemaCompiler::loosened(const Place& place) {
  const Json& schema = *place.schema;
  if (!schema.is_object() || !types(place)) return {&kTrue, place.pointer};
  const auto [known, is_new] = loosened_.try_emplace(&schema, nullptr);
  if (!is_new) return {known->second, place.pointer};
  Json out = Json::object();
  for (const char* keyword : {"type", "properties", "required", "additionalProperties", "patternProperties", "items"}) {
    if (schema.contains(keyword)) out[keyword] = schema[keyword];
  }
  // What is left out may name further properties.
  if (out.contains("properties") || out.contains("additionalProperties")) out["additionalProperties"] = true;
  made_.push_back({std::move(out)});
  known->second = &made_.back().schema;
  return {known->second, place.pointer};
}

Result<uint32_t> SchemaCompiler::exact_value(const Place& place, ValueForm form, uint32_t next) {
  if (b_.full()) return 0;
  const Json& schema = *place.schema;
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) return b_.dead();
    return form == ValueForm::kJson ? parts_.any_value(next) : parts_.string(form, 0, kEndless, next);
  }
  if (!schema.is_object()) return error(place, "", "must be a schema: an object, true or false");
  CALLA_TRY(check_keywords(place));
  if (schema.contains("$ref")) {
    if (assertions(schema) > 1) {
      Json rest = schema;
      rest.erase("$ref");
      made_.push_back({std::move(rest)});
      CALLA_ASSIGN(const Place target, resolve(place));
      CALLA_ASSIGN(const Place both, merged({&made_.back().schema, place.pointer}, target));
      return value(both, form, next);
    }
    CALLA_ASSIGN(const Place target, resolve(place));
    const auto [known, is_new] = references_.try_emplace({target.schema, form}, 0);
    if (is_new) {
      known->second = parts_.add_rule(name_ + target.pointer, false,
                                      [this, target, form](uint32_t end) { return value(target, form, end); });
    }
    return b_.call(known->second, next);
  }
  for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
    if (schema.contains(keyword)) return choice(place, keyword, form, next);
  }
  if (schema.contains("enum") || schema.contains("const")) return constants(place, form, next);
  CALLA_ASSIGN(const Types wanted, types(place));
  if (wanted == 0) return value({&kTrue, place.pointer}, form, next);
  std::vector<uint32_t> ways;
  for (const auto& [name, type] : kTypes) {
    if ((wanted & type) == 0) continue;
    CALLA_ASSIGN(const uint32_t way, typed(place, type, form, next));
    ways.push_back(way);
  }
  return b_.split(ways);
}

Result<uint32_t> SchemaCompiler::typed(const Place& place, Types type, ValueForm form, uint32_t next) {
  switch (type) {
    case kNull:
      return b_.literal("null", next);
    case kBoolean:
      return b_.words({"true", "false"}, next);
    case kInteger:
    case kNumber:
      return number(place, type == kInteger, next);
    case kString:
      return string(place, form, next);
    default:
      break;
  }
  // Containers are rules, so that levels of nesting are calls.
  const auto key = std::pair{place.schema, type == kArray};
  const auto [known, is_new] = containers_.try_emplace(key, 0);
  if (is_new) {
    known->second = parts_.add_rule(name_ + place.pointer, true, [this, place, type](uint32_t end) {
      const auto made = [&](const Place& at) { return type == kArray ? array(at, end) : object(at, end); };
      const Result<uint32_t> exact = made(place);
      return exact || strict_ ? exact : made({&kAnything, place.pointer});
    });
  }
  return b_.call(known->second, next);
}

Result<uint32_t> SchemaCompiler::choice(const Place& place, std::string_view keyword, ValueForm form, uint32_t next) {
  const Json& list = place.schema->at(std::string(keyword));
  if (!list.is_array() || list.empty()) return error(place, keyword, "must be a list of schemas");
  // What stands beside the list holds for each of its parts.
  Json rest = *place.schema;
  rest.erase(std::string(keyword));
  const bool alone = assertions(rest) == 0;
  std::vector<Place> parts;
  for (size_t i = 0; i < list.size(); ++i) parts.push_back(child(place, keyword, i));
  if (keyword == "oneOf" && strict_) CALLA_TRY(check_disjoint(place, parts));
  if (!alone) {
    made_.push_back({std::move(rest)});
    const Place beside{&made_.back().schema, place.pointer};
    if (keyword == "allOf") {
      parts.insert(parts.begin(), beside);
    } else {
      for (Place& part : parts) {
        CALLA_ASSIGN(part, merged(beside, part));
      }
    }
  }
  if (keyword == "allOf") {
    while (parts.size() > 1) {
      CALLA_ASSIGN(const Place both, merged(parts[0], parts[1]));
      parts.erase(parts.begin());
      parts[0] = both;
    }
  }
  if (++merge_depth_ > kMaxMergeDepth && !alone) {
    return error(place, keyword, "combines schemas too often");
  }
  std::vector<uint32_t> ways;
  for (const Place& part : parts) {
    CALLA_ASSIGN(const uint32_t way, value(part, form, next));
    ways.push_back(way);
  }
  --merge_depth_;
  return b_.split(ways);
}

Result<SchemaCompiler::Place> SchemaCompiler::merged(const Place& a, const Place& b) {
  CALLA_ASSIGN(const Place x, resolved(a));
  CALLA_ASSIGN(const Place y, resolved(b));
  if (x.schema->is_boolean()) return x.schema->get<bool>() ? y : x;
  if (y.schema->is_boolean()) return y.schema->get<bool>() ? x : y;
  for (const Place& p : {x, y}) {
    if (!p.schema->is_object()) return error(p, "", "must be a schema: an object, true or false");
  }
  merged_values_ += count_values(*x.schema) + count_values(*y.schema);
  if (merged_values_ > kMaxMerged) return error(y, "", "combines too many or too large schemas");
  const auto closes = [](const Json& s) {
    return s.contains("additionalProperties") && s["additionalProperties"] != true;
  };
  for (const auto& [p, q] : {std::pair{x, y}, {y, x}}) {
    if (closes(*p.schema) && q.schema->contains("properties") && *p.schema != *q.schema) {
      return error(p, "additionalProperties", "is not supported where schemas with properties are combined");
    }
    if (p.schema->contains("items") && q.schema->contains("prefixItems")) {
      return error(p, "items", "is not supported where schemas with prefixItems are combined");
    }
  }
  Json out = *x.schema;
  for (const auto& [keyword, theirs] : y.schema->items()) {
    if (!out.contains(keyword)) out[keyword] = theirs;
    Json& mine = out[keyword];
    if (mine == theirs || !asserts(keyword)) continue;
    if (keyword == "required" && mine.is_array() && theirs.is_array()) {
      for (const Json& name : theirs) {
        if (std::find(mine.begin(), mine.end(), name) == mine.end()) mine.push_back(name);
      }
    } else if (keyword == "properties" && mine.is_object() && theirs.is_object()) {
      for (const auto& [name, schema] : theirs.items()) {
        if (!mine.contains(name)) mine[name] = schema;
        if (mine[name] != schema) mine[name] = Json{{"allOf", Json::array({mine[name], schema})}};
      }
    } else if (keyword == "type") {
      CALLA_ASSIGN(const Types t, types(x));
      CALLA_ASSIGN(const Types u, types(y));
      Types both = t & u;
      if (((t & kInteger) != 0 && (u & kNumber) != 0) || ((u & kInteger) != 0 && (t & kNumber) != 0)) both |= kInteger;
      if (both == 0) return Place{&kFalse, y.pointer};
      mine = Json::array();
      for (const auto& [name, type] : kTypes) {
        if ((both & type) != 0) mine.push_back(name);
      }
    } else {
      return error(y, keyword, "differs from what it is combined with");
    }
  }
  made_.push_back({std::move(out)});
  return Place{&made_.back().schema, y.pointer};
}

// oneOf is anyOf where no document can satisfy two parts: their types differ, or they are objects that a required
// property of constant value tells apart.
Result<void> SchemaCompiler::check_disjoint(const Place& place, const std::vector<Place>& parts) const {
  const auto constants_of = [](const Json& schema) -> std::vector<Json> {
    if (!schema.is_object()) return {};
    if (schema.contains("const")) return {schema["const"]};
    if (schema.contains("enum") && schema["enum"].is_array()) return schema["enum"];
    return {};
  };
  const auto apart = [](const std::vector<Json>& a, const std::vector<Json>& b) {
    return !a.empty() && !b.empty() &&
           std::none_of(a.begin(), a.end(), [&](const Json& v) { return std::find(b.begin(), b.end(), v) != b.end(); });
  };
  struct Part {
    Types types = 0;  // of all its documents; 0: not known
    bool object = false;
    std::vector<Json> values;
    std::map<std::string, std::vector<Json>> tags;
  };
  std::vector<Part> all;
  size_t constants = 0;
  for (const Place& p : parts) {
    CALLA_ASSIGN(const Place target, resolved(p));
    Part part;
    if (target.schema->is_object()) {
      const Json& s = *target.schema;
      part.values = constants_of(s);
      constants += part.values.size();
      CALLA_ASSIGN(const Types implied, types(target));
      part.object = implied == kObject;
      if (s.contains("type")) {
        part.types = implied;
      } else {
        for (const Json& v : part.values) part.types |= type_of(v);
      }
      const auto few = [&](std::string_view keyword) {
        return s.contains(keyword) && s[keyword].size() <= kMaxProperties;
      };
      if (few("properties") && s["properties"].is_object() && few("required") && s["required"].is_array()) {
        for (const Json& name : s["required"]) {
          if (!name.is_string() || !s["properties"].contains(name.get<std::string>())) continue;
          auto values = constants_of(s["properties"][name.get<std::string>()]);
          constants += values.size();
          if (!values.empty()) part.tags.emplace(name.get<std::string>(), std::move(values));
        }
      }
    }
    all.push_back(std::move(part));
  }
  // Each may be compared with each.
  if (parts.size() > kMaxProperties || constants > kMaxEnum)
    return error(place, "oneOf", "has too many parts or constants");
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Part &a = all[i], &b = all[j];
      const Types numbers = kInteger | kNumber;
      const bool overlap = (a.types & b.types) != 0 || ((a.types & numbers) != 0 && (b.types & numbers) != 0);
      if (a.types != 0 && b.types != 0 && !overlap) continue;
      if (apart(a.values, b.values)) continue;
      const bool tagged = a.object && b.object && std::ranges::any_of(a.tags, [&](const auto& tag) {
                            const auto other = b.tags.find(tag.first);
                            return other != b.tags.end() && apart(tag.second, other->second);
                          });
      if (!tagged) {
        return error(place, "oneOf",
                     fmt::format("is supported only where its parts exclude each other: {} and {} may not", j, i));
      }
    }
  }
  return {};
}

Result<uint32_t> SchemaCompiler::constants(const Place& place, ValueForm form, uint32_t next) {
  const Json& schema = *place.schema;
  for (const auto& [keyword, theirs] : schema.items()) {
    if (is_of_type(keyword)) return error(place, keyword, "is not supported beside enum and const");
  }
  std::vector<const Json*> values;
  if (schema.contains("enum")) {
    const Json& list = schema["enum"];
    if (!list.is_array()) return error(place, "enum", "must be a list");
    if (list.size() > kMaxEnum) return error(place, "enum", fmt::format("has more than {} values", kMaxEnum));
    for (const Json& v : list) {
      if (!schema.contains("const") || v == schema["const"]) values.push_back(&v);
    }
  } else {
    values.push_back(&schema["const"]);
  }
  CALLA_ASSIGN(const Types wanted, types(place));
  std::vector<uint32_t> ways;
  std::vector<std::string> words;
  for (const Json* v : values) {
    if (wanted != 0 && !is_of(type_of(*v), wanted)) continue;
    if (v->is_structured()) {
      ways.push_back(parts_.constant(*v, next));
    } else {
      words.push_back(JsonParts::scalar(form, *v));
    }
  }
  if (!words.empty()) ways.push_back(b_.words(std::move(words), next));
  return b_.split(ways);
}

Result<uint32_t> SchemaCompiler::string(const Place& place, ValueForm form, uint32_t next) {
  CALLA_ASSIGN(const uint32_t min, size(place, "minLength", 0));
  CALLA_ASSIGN(const uint32_t max, size(place, "maxLength", kEndless));
  std::optional<CharDfa> dfa;
  const auto restrict_to = [&](std::string_view keyword, Result<CharDfa> more) -> Result<void> {
    if (more && dfa) more = intersect(*dfa, *more);
    if (!more) return error(place, keyword, more.error().message);
    dfa = std::move(*more);
    return {};
  };
  for (const std::string_view keyword : {"pattern", "format"}) {
    const auto it = place.schema->find(keyword);
    if (it == place.schema->end()) continue;
    if (!it->is_string()) return error(place, keyword, "must be a string");
    std::string_view pattern = it->get_ref<const std::string&>();
    if (keyword == "format") pattern = format_pattern(pattern);
    if (!pattern.empty()) CALLA_TRY(restrict_to(keyword, regex_dfa(pattern)));
  }
  if (!dfa) return min <= max ? parts_.string(form, min, max, next) : b_.dead();
  if (min > 0 || max != kEndless) {
    if (min > max) return b_.dead();
    CALLA_TRY(restrict_to(max != kEndless ? "maxLength" : "minLength", length_dfa(min, max)));
  }
  auto node = parts_.string(form, *dfa, next);
  if (!node) return error(place, "pattern", node.error().message);
  return node;
}

Result<uint32_t> SchemaCompiler::number(const Place& place, bool integer, uint32_t next) {
  NumberBounds bounds{.integer = integer};
  const auto read = [&](std::string_view keyword) -> Result<std::optional<Decimal>> {
    const auto it = place.schema->find(keyword);
    if (it == place.schema->end()) return std::nullopt;
    if (!it->is_number() && !it->is_binary()) return error(place, keyword, "must be a number");
    return decimal_of(*it);
  };
  CALLA_ASSIGN(auto minimum, read("minimum"));
  CALLA_ASSIGN(auto above, read("exclusiveMinimum"));
  CALLA_ASSIGN(auto maximum, read("maximum"));
  CALLA_ASSIGN(auto below, read("exclusiveMaximum"));
  CALLA_ASSIGN(bounds.multiple_of, read("multipleOf"));
  if (minimum) bounds.least = {*minimum, false};
  if (above && (!minimum || compare(*above, *minimum) >= 0)) bounds.least = {*above, true};
  if (maximum) bounds.most = {*maximum, false};
  if (below && (!maximum || compare(*below, *maximum) <= 0)) bounds.most = {*below, true};
  if (!bounds.least && !bounds.most && !bounds.multiple_of) return parts_.any_number(integer, next);
  auto node = number_node(b_, bounds, next);
  if (!node) return error(place, "", node.error().message);
  return node;
}

// ---- Containers ----

Result<SchemaCompiler::Object> SchemaCompiler::read_object(const Place& place) const {
  const Json& schema = *place.schema;
  Object out;
  std::unordered_set<std::string> required, named;
  if (const auto it = schema.find("required"); it != schema.end()) {
    if (!it->is_array()) return error(place, "required", "must be a list of names");
    for (const Json& name : *it) {
      if (!name.is_string()) return error(place, "required", "must be a list of names");
      required.insert(name.get<std::string>());
    }
  }
  if (schema.contains("properties")) {
    const Place properties = child(place, "properties");
    if (!properties.schema->is_object()) return error(place, "properties", "must be an object");
    if (properties.schema->size() > kMaxProperties) {
      return error(place, "properties", fmt::format("are more than {}", kMaxProperties));
    }
    for (const auto& [name, unused] : properties.schema->items()) {
      out.properties.push_back({name, child(properties, name), required.contains(name)});
      named.insert(name);
    }
  }
  const auto others = schema.find("additionalProperties");
  if (others != schema.end()) {
    if (*others != false) out.others = child(place, "additionalProperties");
  } else if (out.properties.empty()) {
    out.others = Place{&kTrue, place.pointer};
  }
  if (schema.contains("patternProperties")) out.others = Place{&kTrue, place.pointer};  // left out
  if (const auto it = schema.find("required"); it != schema.end()) {
    for (const Json& name : *it) {
      if (!named.insert(name.get<std::string>()).second) continue;
      if (others != schema.end() && *others == false) {
        return error(place, "required",
                     fmt::format("names \"{}\", which additionalProperties refuses", name.get<std::string>()));
      }
      const Place value = others != schema.end() ? child(place, "additionalProperties") : Place{&kTrue, place.pointer};
      out.properties.push_back({name.get<std::string>(), value, true});
    }
  }
  if (out.properties.size() > kMaxProperties) {
    return error(place, "required", fmt::format("names more than {}", kMaxProperties));
  }
  return out;
}

Result<uint32_t> SchemaCompiler::object(const Place& place, uint32_t next) {
  CALLA_ASSIGN(const Object o, read_object(place));
  const uint32_t end = b_.literal("}", next);
  const uint32_t last = parts_.space(end);
  // From the last property to the first: what may follow when some were written before, and what if none were.
  uint32_t more = last;
  std::vector<uint32_t> first;
  bool may_be_empty = true;
  if (o.others) {
    std::vector<std::string_view> names;
    for (const Property& p : o.properties) names.push_back(p.name);
    more = b_.reserve();
    CALLA_ASSIGN(const uint32_t content, value(*o.others, ValueForm::kJson, more));
    const uint32_t tail = b_.literal(":", parts_.after_colon(content));
    uint32_t entry = 0;
    if (names.empty()) {
      entry = parts_.string(ValueForm::kJson, 0, kEndless, tail);
    } else {
      const auto free = other_than(names);
      if (!free) return error(place, "properties", free.error().message);
      CALLA_ASSIGN(entry, parts_.string(ValueForm::kJson, *free, tail));
    }
    b_.set_split(more, {last, parts_.comma(entry)});
    first.push_back(entry);
  }
  for (size_t i = o.properties.size(); i-- > 0 && !b_.full();) {
    const Property& p = o.properties[i];
    CALLA_ASSIGN(const uint32_t content, value(p.value, ValueForm::kJson, more));
    const uint32_t entry = parts_.key(p.name, content);
    const uint32_t with_comma = parts_.comma(entry);
    if (p.required) {
      more = with_comma;
      first = {entry};
      may_be_empty = false;
    } else {
      more = b_.split({with_comma, more});
      first = {b_.split({entry, b_.split(first)})};
    }
  }
  std::vector<uint32_t> ways;
  if (!first.empty()) ways.push_back(parts_.space(b_.split(first)));
  if (may_be_empty) ways.push_back(end);
  return b_.literal("{", b_.split(ways));
}

Result<uint32_t> SchemaCompiler::array(const Place& place, uint32_t next) {
  const Json& schema = *place.schema;
  CALLA_ASSIGN(const uint32_t min, size(place, "minItems", 0));
  CALLA_ASSIGN(const uint32_t max, size(place, "maxItems", kEndless));
  size_t count = 0;
  if (schema.contains("prefixItems")) {
    if (!schema["prefixItems"].is_array()) return error(place, "prefixItems", "must be a list of schemas");
    count = schema["prefixItems"].size();
    if (count > kMaxProperties) return error(place, "prefixItems", fmt::format("are more than {}", kMaxProperties));
  }
  Place items{&kTrue, place.pointer};
  if (schema.contains("items")) items = child(place, "items");
  if (min > max) return b_.dead();
  const uint32_t end = b_.literal("]", next);
  if (max == 0) return b_.literal("[", end);
  const uint32_t last = parts_.space(end);
  const auto n = static_cast<uint32_t>(std::min<size_t>(count, max));
  const auto less = [](uint32_t a, uint32_t b) { return a == kEndless ? kEndless : a > b ? a - b : 0; };

  // From the last element to the first. After element i, counted from 0, further ones follow a comma.
  Result<uint32_t> failed = 0;
  const auto item = [&](uint32_t more) -> uint32_t {
    auto node = value(items, ValueForm::kJson, more);
    if (!node) failed = node;
    return node.value_or(0);
  };
  const uint32_t fixed = std::max(n, 1u);  // elements that are written one by one
  uint32_t more = last;
  if (max > fixed) {
    more = b_.repeat(
        less(min, fixed), less(max, fixed), [&](uint32_t round) { return parts_.comma(item(round)); }, last);
  }
  uint32_t element = 0;
  for (uint32_t i = fixed; i-- > 0 && failed && !b_.full();) {
    if (i + 1 < fixed) {
      const uint32_t follow = parts_.comma(element);
      more = i + 1 >= min ? b_.split({follow, last}) : follow;
    }
    if (i < count) {
      CALLA_ASSIGN(element, value(child(place, "prefixItems", i), ValueForm::kJson, more));
    } else {
      element = item(more);
    }
  }
  if (!failed) return failed;
  std::vector<uint32_t> ways{parts_.space(element)};
  if (min == 0) ways.push_back(end);
  return b_.literal("[", b_.split(ways));
}

// ---- Tool calls ----

Result<uint32_t> SchemaCompiler::root_parameters(uint32_t next) {
  CALLA_ASSIGN(Place place, resolved({&root_, "#"}));
  if (place.schema->is_boolean()) return value(place, ValueForm::kJson, next);
  if (!place.schema->is_object()) return error(place, "", "must be the schema of an object");
  CALLA_TRY(check_keywords(place));
  for (const std::string_view keyword : {"anyOf", "oneOf", "allOf", "enum", "const"}) {
    if (!place.schema->contains(keyword)) continue;
    if (strict_) return error(place, keyword, "is not supported for the parameters of a tool");
    place = loosened(place);
  }
  CALLA_ASSIGN(const Types wanted, types(place));
  if (wanted != 0 && (wanted & kObject) == 0)
    return error(place, "type", "must be object for the parameters of a tool");
  CALLA_ASSIGN(const Object o, read_object(place));
  const auto after_name = [&](const Place& schema, uint32_t more) -> Result<uint32_t> {
    CALLA_ASSIGN(const uint32_t content, value(schema, ValueForm::kTagged, b_.literal("\n</parameter>\n", more)));
    return b_.literal(">\n", content);
  };
  uint32_t more = next;
  if (o.others) {
    std::vector<std::string_view> names;
    for (const Property& p : o.properties) names.push_back(p.name);
    more = b_.reserve();
    CALLA_ASSIGN(const uint32_t content, after_name(*o.others, more));
    CALLA_ASSIGN(CharDfa name, regex_dfa("^[^<>\\s]{1,64}$"));
    auto free = other_than(names);
    if (free) free = intersect(name, *free);
    if (!free) return error(place, "properties", free.error().message);
    CALLA_ASSIGN(const uint32_t entry, parts_.string(ValueForm::kTagged, *free, content));
    b_.set_split(more, {next, b_.literal("<parameter=", entry)});
  }
  for (size_t i = o.properties.size(); i-- > 0 && !b_.full();) {
    const Property& p = o.properties[i];
    if (p.name.empty() || p.name.find_first_of("<>\n") != p.name.npos) {
      return error(p.value, "", "has a name that a tool call cannot hold");
    }
    CALLA_ASSIGN(const uint32_t content, after_name(p.value, more));
    const uint32_t entry = b_.literal("<parameter=" + p.name, content);
    more = p.required ? entry : b_.split({entry, more});
  }
  return more;
}

}  // namespace calla
