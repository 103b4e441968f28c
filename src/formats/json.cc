#include "formats/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "formats/printable.h"

namespace calla {
namespace {

using Json = nlohmann::json;
constexpr int kMaxDepth = 32;

// Watches the parser, which by itself keeps the last of two equal keys and accepts any depth.
struct Watch {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string duplicate;
  bool too_deep = false;

  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    too_deep = too_deep || depth > kMaxDepth;
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get_ref<const std::string&>()).second) {
      duplicate = value.get_ref<const std::string&>();
    }
    return !too_deep;  // what is too deep is dropped, so the tree stays shallow
  }
};

}  // namespace

Result<Json> parse_json_object(std::string_view text, std::string_view name) {
  Watch watch;
  Json json = Json::parse(text, std::ref(watch), /*allow_exceptions=*/false);
  if (watch.too_deep) return invalid(fmt::format("{}: nested deeper than {} levels", name, kMaxDepth));
  if (json.is_discarded()) return invalid(fmt::format("{} is not valid JSON", name));
  if (!json.is_object()) return invalid(fmt::format("{}: expected a JSON object", name));
  if (!watch.duplicate.empty())
    return invalid(fmt::format("{}: key \"{}\" appears twice", name, printable(watch.duplicate)));
  return json;
}

}  // namespace calla
