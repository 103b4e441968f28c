// Any text as an answer, in pieces of any sizes: no crash, the joined events do not depend on the cuts, nothing of what
// is no call is lost, and each call's arguments are a JSON object.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/answer_parser.h"
#include "text/chat_json.h"
#include "text/utf8.h"

namespace {

using calla::AnswerEvent;
using calla::ToolTypes;

const std::vector<std::string> kTools = {
    R"({"name":"f","parameters":{"properties":{"s":{"type":"string"},"n":{"type":"integer"},"o":{"type":"object"},)"
    R"("u":{"type":["string","null","boolean"]},"v":{"anyOf":[{"type":"array"},{"type":"string"},{"type":"number"}]}}}})"};

// Events in a row of one kind and call are one.
std::vector<AnswerEvent> read(std::string_view text, bool reasoning, bool tools, std::string_view cuts) {
  calla::AnswerParser parser(reasoning, tools ? std::make_shared<const ToolTypes>(kTools) : nullptr);
  std::vector<AnswerEvent> out;
  for (size_t i = 0; !text.empty(); ++i) {
    const size_t n = cuts.empty() ? text.size() : 1 + static_cast<uint8_t>(cuts[i % cuts.size()]) % 16;
    parser.push(text.substr(0, n), out);
    text.remove_prefix(std::min(n, text.size()));
  }
  parser.finish(out);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 5) return 0;
  const bool reasoning = (data[0] & 1) != 0, tools = (data[0] & 2) != 0;
  const std::string_view cuts(reinterpret_cast<const char*>(data) + 1, 4);
  const std::string text = calla::repair_utf8({reinterpret_cast<const char*>(data) + 5, size - 5});
  const auto whole = read(text, reasoning, tools, {});
  const auto pieces = read(text, reasoning, tools, cuts);
  CHECK(whole.size() == pieces.size(), "the cuts matter");
  std::string arguments;
  size_t letters = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    const AnswerEvent &a = whole[i], &b = pieces[i];
    CHECK(a.kind == b.kind && a.call == b.call && a.text == b.text, "the cuts matter");
    if (a.kind == AnswerEvent::Kind::kCallArguments) arguments += a.text;
    if (a.kind == AnswerEvent::Kind::kReasoning || a.kind == AnswerEvent::Kind::kText) letters += a.text.size();
    if (a.kind != AnswerEvent::Kind::kCallEnd) continue;
    const auto json = calla::parse_json(arguments);
    CHECK(json && json->is_object(), "arguments are no JSON object");
    arguments.clear();
  }
  CHECK(arguments.empty(), "a call without an end");
  CHECK(letters <= text.size(), "letters from nowhere");
  return 0;
}
