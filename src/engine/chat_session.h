#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/generate.h"
#include "text/chat_template.h"

namespace calla {

// A conversation with a model, turn by turn. A turn reads only what is new: the sequence keeps the state of all that
// was said, and is rolled back to where the next prompt differs. With thinking off the history is append-only; with
// thinking on, the template drops the reasoning of finished turns, and a mark at the header of each answer makes that
// cost one answer, not the whole conversation. Not thread-safe. The model must outlive it.
class ChatSession {
 public:
  static Result<ChatSession> start(Model& model);

  // Called with each piece of an answer. False: stop the answer.
  using OnText = std::function<bool(std::string_view text, bool reasoning)>;

  // Answers `user`. The turn is kept unless it failed, or was cancelled before its first token; a cancelled answer is
  // kept as far as it came. options.on_delta and marks are the session's own. Errors: those of generate(), and a
  // conversation that no longer fits.
  Result<Generation> say(std::string user, GenerateOptions options, const OnText& on_text);
  // Takes the last answer back and gives another. The old one is kept if the new one fails or is cancelled before its
  // first token.
  Result<Generation> regenerate(GenerateOptions options, const OnText& on_text);
  bool has_answer() const;

  void clear();                       // forgets what was said, keeps the system message
  void set_system(std::string text);  // "" for none
  std::string system() const;
  // Unset: the template's default.
  void set_thinking(std::optional<bool> thinking) { conversation_.thinking = thinking; }
  std::optional<bool> thinking() const { return conversation_.thinking; }

  int turns() const;  // messages of the user
  const Conversation& conversation() const { return conversation_; }
  int used() const { return sequence_->position(); }  // tokens of the context that hold something
  int context() const { return model_->runner().context(); }

  // The conversation as {"messages": […]}, which `calla run --request` and load() read. load() refuses tools, and
  // leaves the session as it was on an error.
  Result<void> save(const std::filesystem::path& path) const;
  Result<void> load(const std::filesystem::path& path);

 private:
  ChatSession(Model& model, std::unique_ptr<Sequence> sequence) : model_(&model), sequence_(std::move(sequence)) {}
  Result<Generation> answer(GenerateOptions options, const OnText& on_text);

  Model* model_;
  std::unique_ptr<Sequence> sequence_;
  Conversation conversation_;
};

}  // namespace calla
