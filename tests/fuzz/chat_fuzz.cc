// Any bytes as a request: no crash, and whatever renders has its controls sorted, disjoint and inside the text, each of
// them a marker. A conversation that the official rules accept is accepted by the lenient ones.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/chat_request.h"
#include "text/chat_template.h"

namespace {

using calla::ChatRules;
using calla::ChatTemplate;

bool render(std::string_view request, ChatTemplate::Version version, ChatRules rules) {
  const auto conversation = calla::parse_conversation(request, rules);
  if (!conversation) return false;
  const auto prompt = ChatTemplate(version).render(*conversation, rules);
  if (!prompt) return false;
  size_t end = 0;
  for (const calla::Span& c : prompt->controls) {
    CHECK(c.offset >= end && c.length > 0 && c.offset + c.length <= prompt->text.size(), "controls out of order");
    const std::string_view marker = std::string_view(prompt->text).substr(c.offset, c.length);
    CHECK(marker.front() == '<' && marker.back() == '>' && std::count(marker.begin(), marker.end(), '<') == 1,
          "not a marker");
    end = c.offset + c.length;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view request(reinterpret_cast<const char*>(data), size);
  for (const auto version : {ChatTemplate::Version::kQwen36, ChatTemplate::Version::kQwen35}) {
    const bool official = render(request, version, ChatRules::kOfficial);
    const bool lenient = render(request, version, ChatRules::kLenient);
    CHECK(lenient || !official, "the lenient rules refuse what the official rules accept");
  }
  return 0;
}
