#include "grammar/json_parts.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "grammar/number.h"
#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kSpaces = 32, kTabs = 8;
constexpr uint32_t kEndless = GrammarProgram::kEndless;
static_assert(kEndless == kAnyLength);

}  // namespace

JsonParts::JsonParts(ProgramBuilder& builder, std::optional<CharDfa> allowed)
    : b_(builder), allowed_(std::move(allowed)) {}

uint32_t JsonParts::add_rule(std::string name, bool container, Writer writer, bool nullable) {
  const uint32_t rule = b_.add_rule(std::move(name), container, nullable);
  waiting_.emplace_back(rule, std::move(writer));
  return rule;
}

Result<void> JsonParts::write_rules() {
  for (; !waiting_.empty() && !b_.full(); waiting_.pop_front()) {
    const auto [rule, writer] = waiting_.front();
    b_.begin_rule(rule);
    CALLA_ASSIGN(const uint32_t entry, writer(b_.ends()));
    b_.end_rule(rule, entry);
  }
  return {};
}

uint32_t JsonParts::space(uint32_t next) {
  if (!space_) {
    space_ = add_rule(
        "space", false,
        [this](uint32_t end) -> Result<uint32_t> {
          const auto run = [&](char c, uint32_t most) {
            return b_.repeat(
                0, most, [&](uint32_t more) { return b_.literal(std::string_view(&c, 1), more); }, end);
          };
          const uint32_t line = b_.literal("\n", b_.split({run(' ', kSpaces), run('\t', kTabs)}));
          return b_.split({end, b_.literal(" ", end), line});
        },
        true);
  }
  return b_.call(*space_, next);
}

uint32_t JsonParts::after_colon(uint32_t next) {
  return b_.split({next, b_.literal(" ", next)});
}

uint32_t JsonParts::key(std::string_view name, uint32_t next) {
  return b_.literal(python_json(Json(name)) + ":", after_colon(next));
}

uint32_t JsonParts::container(char open, char close, bool may_be_empty,
                              const std::function<uint32_t(uint32_t)>& elements, uint32_t next) {
  const uint32_t end = b_.literal(std::string_view(&close, 1), next);
  std::vector<uint32_t> ways{space(elements(space(end)))};
  if (may_be_empty) ways.push_back(end);
  return b_.literal(std::string_view(&open, 1), b_.split(ways));
}

uint32_t JsonParts::any_object(uint32_t next) {
  if (!object_) {
    object_ = add_rule("object", true, [this](uint32_t end) -> Result<uint32_t> {
      return container(
          '{', '}', true,
          [&](uint32_t last) {
            const auto entry = [&](uint32_t more) {
              return string(ValueForm::kJson, 0, kEndless, b_.literal(":", after_colon(any_value(more))));
            };
            return entry(b_.repeat(
                0, kEndless, [&](uint32_t more) { return comma(entry(more)); }, last));
          },
          end);
    });
  }
  return b_.call(*object_, next);
}

uint32_t JsonParts::any_value(uint32_t next) {
  if (!value_) {
    array_ = add_rule("array", true, [this](uint32_t end) -> Result<uint32_t> {
      return container(
          '[', ']', true,
          [&](uint32_t last) {
            return any_value(b_.repeat(
                0, kEndless, [&](uint32_t more) { return comma(any_value(more)); }, last));
          },
          end);
    });
    value_ = add_rule("value", false, [this](uint32_t end) -> Result<uint32_t> {
      return b_.split({any_object(end), b_.call(*array_, end), string(ValueForm::kJson, 0, kEndless, end),
                       any_number(false, end), b_.words({"true", "false", "null"}, end)});
    });
  }
  return b_.call(*value_, next);
}

uint32_t JsonParts::any_number(bool integer, uint32_t next) {
  std::optional<uint32_t>& rule = integer ? integer_ : number_;
  if (!rule) {
    rule =
        add_rule("number", false, [this, integer](uint32_t end) { return number_node(b_, {.integer = integer}, end); });
  }
  return b_.call(*rule, next);
}

// What may follow a backslash. Halves of surrogate pairs come as pairs.
uint32_t JsonParts::any_escape(uint32_t next) {
  const auto hex = [&](int count, uint32_t node) {
    for (; count > 0; --count) node = b_.bytes({{'0', '9', node}, {'A', 'F', node}, {'a', 'f', node}});
    return node;
  };
  const uint32_t two = hex(2, next), three = hex(1, two);
  const uint32_t low_half = b_.bytes({{'C', 'F', two}, {'c', 'f', two}});
  const uint32_t low = b_.literal("\\u", b_.bytes({{'D', 'D', low_half}, {'d', 'd', low_half}}));
  const uint32_t pair = hex(2, low);
  const uint32_t d = b_.bytes({{'0', '7', two}, {'8', '9', pair}, {'A', 'B', pair}, {'a', 'b', pair}});
  const uint32_t u = b_.bytes({{'0', '9', three},
                               {'A', 'C', three},
                               {'a', 'c', three},
                               {'D', 'D', d},
                               {'d', 'd', d},
                               {'E', 'F', three},
                               {'e', 'f', three}});
  std::vector<ByteEdge> edges{{'u', 'u', u}};
  for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) {
    edges.push_back({static_cast<uint8_t>(c), static_cast<uint8_t>(c), next});
  }
  return b_.bytes(edges);
}

uint32_t JsonParts::free_text(ValueForm form, uint32_t min, uint32_t max, uint32_t next) {
  const bool counted = min > 0 || max != kEndless;
  const CharDfa everything{{{{{0, kMaxCharacter, 0}}, true}}};
  const CharDfa& dfa = allowed_ ? *allowed_ : everything;
  // A place for each state of the automaton, all of which accept, and the way back to it after a character.
  std::vector<uint32_t> places, back;
  for (size_t s = 0; s < dfa.states.size(); ++s) {
    places.push_back(counted ? b_.loop(min, max, next) : b_.reserve());
    back.push_back(counted ? b_.again(places[s]) : places[s]);
  }
  const uint32_t escape = form == ValueForm::kJson ? any_escape(back[0]) : 0;
  for (size_t s = 0; s < dfa.states.size(); ++s) {
    std::vector<ByteEdge> edges;
    for (const auto& e : dfa.states[s].edges) {
      if (form == ValueForm::kTagged) {
        b_.add_characters(edges, e.lo, e.hi, back[e.to]);
        continue;
      }
      for (const auto& [lo, hi] : {std::pair{0x20u, 0x21u}, {0x23u, 0x5bu}, {0x5du, kMaxCharacter}}) {
        b_.add_characters(edges, std::max(e.lo, lo), std::min(e.hi, hi), back[e.to]);
      }
    }
    if (form == ValueForm::kJson) edges.push_back({'\\', '\\', escape});
    using Run = GrammarNode::Run;
    const uint32_t body = b_.bytes(edges, s > 0 ? Run::kNone : counted ? Run::kCounted : Run::kEndless);
    if (counted) {
      b_.set_loop_body(places[s], body);
    } else {
      b_.set_split(places[s], {body, next});
    }
  }
  return counted ? b_.enter(places[0]) : places[0];
}

uint32_t JsonParts::string(ValueForm form, uint32_t min, uint32_t max, uint32_t next) {
  if (form == ValueForm::kTagged) return free_text(form, min, max, next);
  if (min > 0 || max != kEndless) return b_.literal("\"", free_text(form, min, max, b_.literal("\"", next)));
  if (!string_) {
    string_ = add_rule("string", false, [this](uint32_t end) -> Result<uint32_t> {
      return b_.literal("\"", free_text(ValueForm::kJson, 0, kEndless, b_.literal("\"", end)));
    });
  }
  return b_.call(*string_, next);
}

Result<uint32_t> JsonParts::string(ValueForm form, const CharDfa& wanted, uint32_t next) {
  CharDfa dfa = wanted;
  if (allowed_) {
    CALLA_ASSIGN(dfa, intersect(wanted, *allowed_));
  }
  const bool json = form == ValueForm::kJson;
  const uint32_t end = json ? b_.literal("\"", next) : next;
  std::vector<uint32_t> places;
  for (size_t s = 0; s < dfa.states.size(); ++s) places.push_back(b_.reserve());
  for (size_t s = 0; s < dfa.states.size() && !b_.full(); ++s) {
    std::vector<ByteEdge> edges, escapes, controls[2];  // controls: \u000X and \u001X
    for (const auto& e : dfa.states[s].edges) {
      const uint32_t to = places[e.to];
      if (!json) {
        b_.add_characters(edges, e.lo, e.hi, to);
        continue;
      }
      for (const auto& [lo, hi] : {std::pair{0x20u, 0x21u}, {0x23u, 0x5bu}, {0x5du, kMaxCharacter}}) {
        b_.add_characters(edges, std::max(e.lo, lo), std::min(e.hi, hi), to);
      }
      for (uint32_t c = e.lo; c <= std::min(e.hi, uint32_t{'\\'}); ++c) {
        constexpr std::string_view kNamed = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
        if (const size_t i = kNamed.find(static_cast<char>(c)); i != kNamed.npos) {
          escapes.push_back({static_cast<uint8_t>(kNames[i]), static_cast<uint8_t>(kNames[i]), to});
        } else if (c < 0x20) {
          const auto digit = static_cast<uint8_t>("0123456789abcdef"[c % 16]);
          controls[c / 16].push_back({digit, digit, to});
        }
      }
    }
    std::vector<ByteEdge> tens;
    for (uint8_t i = 0; i < 2; ++i) {
      const auto c = static_cast<uint8_t>('0' + i);
      if (!controls[i].empty()) tens.push_back({c, c, b_.bytes(controls[i])});
    }
    if (!tens.empty()) escapes.push_back({'u', 'u', b_.literal("00", b_.bytes(tens))});
    if (!escapes.empty()) edges.push_back({'\\', '\\', b_.bytes(escapes)});
    std::vector<uint32_t> ways;
    using Run = GrammarNode::Run;
    const auto& all = dfa.states[s].edges;
    const bool anything = all.size() == 1 && all[0].lo == 0 && all[0].hi == kMaxCharacter && all[0].to == s;
    if (!edges.empty()) ways.push_back(b_.bytes(edges, anything ? Run::kEndless : Run::kNone));
    if (dfa.states[s].accepts) ways.push_back(end);
    b_.set_split(places[s], ways);
  }
  return json ? b_.literal("\"", places[0]) : places[0];
}

std::string JsonParts::scalar(ValueForm form, const Json& value) {
  if (form == ValueForm::kTagged && value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) {
    const double v = value.get<double>();
    // As people write it: 1, not 1.0.
    if (std::trunc(v) == v && std::abs(v) < 1e15) return std::to_string(static_cast<int64_t>(v));
  }
  return python_json(value);
}

uint32_t JsonParts::constant(const Json& value, uint32_t next) {
  const bool object = value.is_object();
  if (value.empty()) return b_.literal(object ? "{}" : "[]", next);
  return container(
      object ? '{' : '[', object ? '}' : ']', false,
      [&](uint32_t last) {
        uint32_t node = last;
        for (auto it = value.end(); it != value.begin();) {
          --it;
          node = it->is_structured() ? constant(*it, node) : b_.literal(scalar(ValueForm::kJson, *it), node);
          if (object) node = key(it.key(), node);
          if (it != value.begin()) node = comma(node);
        }
        return node;
      },
      next);
}

}  // namespace calla
