// Any bytes as a change of a conversation: no crash, and what is read is written so that it reads back the same.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "store/conversation.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto change = calla::read_change({reinterpret_cast<const char*>(data), size});
  if (!change) return 0;
  calla::StoredConversation conversation;
  conversation.summary = {"c", change->title.value_or("title"), 1, 2, ""};
  conversation.leaf = change->leaf.value_or("");
  conversation.settings = change->settings.value_or("");
  conversation.messages = change->messages;
  CHECK(!calla::to_markdown(conversation).empty(), "no Markdown");
  const auto again = calla::read_change(calla::to_json(conversation));
  CHECK(again, "what was written does not read back");
  CHECK(again->messages.size() == change->messages.size(), "messages were lost");
  for (size_t i = 0; i < again->messages.size(); ++i) {
    CHECK(again->messages[i].json == change->messages[i].json, "a message has changed");
  }
  return 0;
}
