#pragma once

// What the page asks the server for, besides answers: its conversations.
//
//   GET    /api/conversations?q=WORDS&before=MILLISECONDS&limit=N   {"conversations": […], "more": bool}, newest first
//   GET    /api/conversations/ID                                    the whole tree
//   PUT    /api/conversations/ID       {"title"?, "leaf"?, "settings"?, "messages"?}: creates it or adds to it
//   PATCH  /api/conversations/ID       {"title"}: renames it
//   DELETE /api/conversations/ID
//   GET    /api/conversations/ID/export?format=markdown|json        a file
//
// store/conversation.h describes the fields. Errors are {"error": {"message"}} with 400, 404 or, where the file cannot
// be used, 503: the rest of the server goes on without it.

#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>

#include "server/router.h"
#include "store/conversations.h"

namespace calla {

// Thread-safe. The file is opened at the first use and, if that fails, at the next; without a place for it, each
// request is told why.
class PageApi {
 public:
  explicit PageApi(Result<std::filesystem::path> file) : file_(std::move(file)) {}
  PageApi(const PageApi&) = delete;
  PageApi& operator=(const PageApi&) = delete;

  // This object must outlive the calls.
  void add_to(Router& router);

 private:
  using Answer = std::function<Result<HttpResponse>(ConversationStore& store, const Call& call)>;
  void add(Router& router, const char* method, const char* pattern, Answer answer);
  Result<ConversationStore*> store();

  const Result<std::filesystem::path> file_;
  std::mutex mutex_;
  std::optional<ConversationStore> store_;
};

}  // namespace calla
