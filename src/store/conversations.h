#pragma once

// Conversations of the chat page in one SQLite file.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/conversation.h"

namespace calla {

// $XDG_DATA_HOME/calla/conversations.db, or below ~/.local/share. An error: neither variable holds an absolute path.
Result<std::filesystem::path> conversations_file();

// Thread-safe: one call works at a time. Calls read and write the disk. A call either happens wholly or not at all,
// also when the power goes; several programs may use one file. Every error leaves the store usable and is kNotFound for
// a conversation that is not there, kInvalid for what the caller gave, and otherwise kIo: the disk is full, another
// program holds the file for more than a second, the file is damaged.
class ConversationStore {
 public:
  // Creates the file, readable by its owner only, and its folders where they are missing. Refuses a file of another
  // program and one that a newer Calla has written.
  static Result<ConversationStore> open(const std::filesystem::path& file);
  ConversationStore(ConversationStore&&) noexcept;
  ConversationStore& operator=(ConversationStore&&) noexcept;
  ~ConversationStore();

  // Up to `limit` conversations, the one changed last first, of those changed before `before` (milliseconds; the last
  // `updated` of a page leads to the next). With a query, only those in which the title or one message contains all of
  // its words, anywhere and in either case; words of one or two characters distinguish case beyond ASCII.
  Result<std::vector<ConversationSummary>> list(std::string_view query, int limit, int64_t before = INT64_MAX) const;

  Result<StoredConversation> get(std::string_view id) const;

  // Creates the conversation if there is none of this id. Messages are only ever added or, under their own id and
  // parent, written over, so two windows on one conversation never undo each other's work.
  Result<ConversationSummary> put(std::string_view id, const ConversationChange& change);

  // A new title; the order of the list stays.
  Result<ConversationSummary> rename(std::string_view id, std::string_view title);

  // The words are gone from the file afterwards, not only from the list.
  Result<void> remove(std::string_view id);

 private:
  struct Database;
  explicit ConversationStore(std::unique_ptr<Database> database);
  std::unique_ptr<Database> database_;
};

}  // namespace calla
