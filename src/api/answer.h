#pragma once

// An answer on its way to a client: what was said so far, and who writes it down.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/request.h"
#include "engine/generate.h"
#include "text/answer_parser.h"
#include "text/tokenizer.h"

namespace calla {

// A stretch of an answer: reasoning, text, or a call.
struct AnswerPart {
  enum class Kind : uint8_t { kReasoning, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;  // a call's arguments as JSON
  std::string name;  // of a call
  std::string id;    // letters that no other part has; writers put their own prefixes before them
};

struct ApiAnswer {
  std::vector<AnswerPart> parts;
  std::vector<Sampled> logprobs;  // if asked for: tokens after the reasoning, up to the one that ended the answer
  Generation result;              // without text and tokens; once the answer is complete

  int answer_tokens = 0;
  bool has_call() const;
  std::string joined(AnswerPart::Kind kind) const;  // the texts of all parts of this kind
};

// A new id: the prefix and 24 random letters and digits. Thread-safe.
std::string new_id(std::string_view prefix);

// The time now, in seconds since 1970.
int64_t unix_time();

// Appends one server-sent event. event "": without a name.
void append_sse(std::string& out, std::string_view event, const nlohmann::ordered_json& data);

// A token with its log-probability as OpenAI's APIs show it: token, logprob, bytes, top_logprobs.
nlohmann::ordered_json logprob_json(const Tokenizer& tokenizer, const Sampled& token);

// OpenAI's usage of all answers, `n` to each prompt, which counts once.
nlohmann::ordered_json openai_usage(std::span<const ApiAnswer> answers, int n);

// Writes the answers to one request in the form of one API, as a stream or whole. Not thread-safe. Everything that is
// appended to `out` is a whole number of events.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // ---- A stream ----
  // The prompt is known, and `cached` of its tokens were.
  virtual void begin(int prompt_tokens, int cached, std::string& out) = 0;
  // Answer `index` grew by `event`; it is the answer's last part that changed. `fresh`: the part is new. `logprobs`:
  // those that the answer has more since the last call.
  virtual void event(int index, const AnswerEvent& event, const ApiAnswer& answer, bool fresh,
                     std::span<const Sampled> logprobs, std::string& out) = 0;
  // Answer `index` is complete. `logprobs` as above.
  virtual void end(int index, const ApiAnswer& answer, std::span<const Sampled> logprobs, std::string& out) = 0;
  // All are.
  virtual void finish(std::span<const ApiAnswer> answers, std::string& out) = 0;
  // Instead of all that would follow.
  virtual void fail(const ApiError& error, std::string& out) = 0;

  // ---- Whole ----
  virtual std::string body(std::span<const ApiAnswer> answers) = 0;
};

// What writers need of the request.
struct WriterContext {
  std::string model;  // its name
  const Tokenizer* tokenizer = nullptr;
  int n = 1;  // answers to each prompt
  bool include_usage = false;
  bool logprobs = false;
  bool hide_thinking = false;
  std::vector<std::string> echo_prompts;
  std::shared_ptr<const nlohmann::ordered_json> echo;
};

// How a stream of chat or text completions ends: the usage in a chunk of its own, if it was asked for, then [DONE].
// head: what every chunk begins with.
void finish_openai_stream(nlohmann::ordered_json head, const WriterContext& context, std::span<const ApiAnswer> answers,
                          std::string& out);
void fail_openai_stream(const ApiError& error, std::string& out);

}  // namespace calla
