#include "text/tool_types.h"

#include <nlohmann/json.hpp>

#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;
using Mask = ToolTypes::Mask;

// A hostile schema can refer to itself twice on each level.
constexpr int kMaxSchemas = 4096;
constexpr int kMaxDepth = 32;

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

Mask type_of(const Json& value) {
  if (value.is_string()) return ToolTypes::kString;
  if (value.is_boolean()) return ToolTypes::kBoolean;
  if (value.is_object()) return ToolTypes::kObject;
  if (value.is_array()) return ToolTypes::kArray;
  if (value.is_null()) return ToolTypes::kNull;
  return ToolTypes::kNumber;  // a big integer is binary
}

Mask type_named(const Json& name) {
  if (name == "string") return ToolTypes::kString;
  if (name == "number" || name == "integer") return ToolTypes::kNumber;
  if (name == "boolean") return ToolTypes::kBoolean;
  if (name == "object") return ToolTypes::kObject;
  if (name == "array") return ToolTypes::kArray;
  if (name == "null") return ToolTypes::kNull;
  return 0;
}

class Reader {
 public:
  explicit Reader(const Json& root) : root_(root) {}

  // The types that a schema allows. 0: it does not say.
  Mask allowed(const Json& schema, int depth = 0) {
    if (!schema.is_object() || depth > kMaxDepth || --budget_ < 0) return 0;
    Mask types = declared(schema);
    for (const char* key : {"anyOf", "oneOf"}) restrict(types, any_of(member(schema, key), depth));
    if (const Json* all = member(schema, "allOf"); all != nullptr && all->is_array()) {
      for (const Json& part : *all) restrict(types, allowed(part, depth + 1));
    }
    if (const Json* target = resolve(member(schema, "$ref"))) restrict(types, allowed(*target, depth + 1));
    if (const Json* nullable = member(schema, "nullable"); types != 0 && nullable != nullptr && *nullable == true) {
      types |= ToolTypes::kNull;
    }
    return types;
  }

  // Follows $ref to the schema itself.
  const Json& target(const Json& schema) {
    const Json* found = &schema;
    for (int depth = 0; depth < kMaxDepth; ++depth) {
      const Json* next = resolve(member(*found, "$ref"));
      if (next == nullptr) break;
      found = next;
    }
    return *found;
  }

 private:
  static void restrict(Mask& types, Mask more) {
    if (types == 0 || more == 0) {
      types |= more;
    } else if ((types & more) != 0) {
      types &= more;
    }
  }

  static Mask declared(const Json& schema) {
    Mask types = 0;
    if (const Json* type = member(schema, "type")) {
      if (type->is_array()) {
        for (const Json& name : *type) types |= type_named(name);
      } else {
        types = type_named(*type);
      }
    }
    if (types != 0) return types;
    if (const Json* constant = member(schema, "const")) return type_of(*constant);
    if (const Json* values = member(schema, "enum"); values != nullptr && values->is_array()) {
      for (const Json& value : *values) types |= type_of(value);
    } else if (member(schema, "properties") != nullptr) {
      types = ToolTypes::kObject;
    } else if (member(schema, "items") != nullptr) {
      types = ToolTypes::kArray;
    }
    return types;
  }

  // One that says nothing makes the union say nothing.
  Mask any_of(const Json* parts, int depth) {
    if (parts == nullptr || !parts->is_array()) return 0;
    Mask types = 0;
    for (const Json& part : *parts) {
      const Mask one = allowed(part, depth + 1);
      if (one == 0) return 0;
      types |= one;
    }
    return types;
  }

  // "#", "#/$defs/name"
  const Json* resolve(const Json* ref) const {
    if (ref == nullptr || !ref->is_string()) return nullptr;
    std::string_view path = ref->get_ref<const std::string&>();
    if (!path.starts_with('#')) return nullptr;
    path.remove_prefix(1);
    const Json* at = &root_;
    while (at != nullptr && path.starts_with('/')) {
      path.remove_prefix(1);
      std::string key(path.substr(0, path.find('/')));
      path.remove_prefix(key.size());
      for (const auto& [from, to] : {std::pair{"~1", "/"}, std::pair{"~0", "~"}}) {
        for (size_t i = 0; (i = key.find(from, i)) != key.npos; ++i) key.replace(i, 2, to);
      }
      if (at->is_array() && key.size() < 9 && !key.empty() && key.find_first_not_of("0123456789") == key.npos) {
        const size_t index = std::stoul(key);
        at = index < at->size() ? &(*at)[index] : nullptr;
      } else {
        at = member(*at, key.c_str());
      }
    }
    return path.empty() ? at : nullptr;
  }

  const Json& root_;
  int budget_ = kMaxSchemas;
};

}  // namespace

ToolTypes::ToolTypes(const std::vector<std::string>& tools) {
  for (const std::string& text : tools) {
    const auto parsed = parse_json(text);
    if (!parsed) continue;
    const Json* function = member(*parsed, "function");
    if (function == nullptr) function = &*parsed;
    const Json* name = member(*function, "name");
    if (name == nullptr || !name->is_string()) continue;
    Tool& tool = tools_[name->get<std::string>()];
    const Json* root = member(*function, "parameters");
    if (root == nullptr) continue;
    Reader reader(*root);
    const Json& schema = reader.target(*root);
    if (const Json* parameters = member(schema, "properties"); parameters != nullptr && parameters->is_object()) {
      for (const auto& [key, value] : parameters->items()) tool.parameters[key] = reader.allowed(value);
    }
    if (const Json* others = member(schema, "additionalProperties")) tool.others = reader.allowed(*others);
  }
}

bool ToolTypes::knows(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(std::string(tool));
  return found != tools_.end() && found->second.parameters.contains(std::string(parameter));
}

Mask ToolTypes::of(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(std::string(tool));
  if (found == tools_.end()) return 0;
  const auto known = found->second.parameters.find(std::string(parameter));
  return known == found->second.parameters.end() ? found->second.others : known->second;
}

}  // namespace calla
