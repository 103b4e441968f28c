#pragma once

// A conversation as the page keeps it, and its forms as JSON and Markdown.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace calla {

// Messages form a tree: to regenerate an answer or to edit a question adds a sibling, so nothing that was said is lost.
struct StoredMessage {
  std::string id;      // unique in its conversation
  std::string parent;  // the message that it follows; empty: it opens the conversation
  std::string role;    // system, user, assistant or tool
  std::string json;    // the whole message, one JSON object: the four fields here and whatever else the page keeps
  std::string text;    // what a search looks at: the message's content
};

struct ConversationSummary {
  std::string id;
  std::string title;
  int64_t created = 0;  // milliseconds since 1970
  int64_t updated = 0;  // likewise; no two conversations of one store have the same
  std::string snippet;  // of a search: where it matched; empty if only the title did
};

struct StoredConversation {
  ConversationSummary summary;
  std::string leaf;                     // the message at the end of the branch that is shown; empty: none yet
  std::string settings;                 // a JSON object that belongs to the page
  std::vector<StoredMessage> messages;  // parents before children
};

// What a put changes; what is absent stays as it is.
struct ConversationChange {
  std::optional<std::string> title;
  std::optional<std::string> leaf;
  std::optional<std::string> settings;
  std::vector<StoredMessage> messages;  // added, or, if the id is known, written over
};

// Of identifiers, in bytes: 1 to this many of A–Z, a–z, 0–9, "-" and "_".
inline constexpr size_t kMaxIdBytes = 64;
inline constexpr size_t kMaxTitleBytes = 1000;
inline constexpr size_t kMaxMessages = 20000;  // of one conversation, all branches together

// An error names `what` and says what an identifier is.
Result<void> check_id(std::string_view id, std::string_view what);
// A title as it is kept: white space and control characters are single spaces, none at the ends. An error: nothing is
// left, or more than kMaxTitleBytes.
Result<std::string> clean_title(std::string_view title);

// Reads {"title"?, "leaf"?, "settings"?, "messages"?: [{"id", "parent": id or null, "role", "content"?, …}]}. Errors
// name the field. Whether parents and leaf exist, the store knows.
Result<ConversationChange> read_change(std::string_view json);

// {"id", "title", "created", "updated"}, and "snippet" if there is one.
std::string to_json(const ConversationSummary& summary);
// The summary's fields, "leaf", "settings" and "messages".
std::string to_json(const StoredConversation& conversation);

// The branch that ends at the leaf, for people: a heading for each turn, reasoning folded, calls as code. Content is
// Markdown already and stands as it is.
std::string to_markdown(const StoredConversation& conversation);

}  // namespace calla
