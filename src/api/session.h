#pragma once

// From a request's bytes to its answer's bytes: the codecs of the APIs over engine/service.h.

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/answer.h"
#include "api/errors.h"
#include "api/request.h"
#include "engine/answer_memory.h"
#include "engine/model.h"
#include "engine/service.h"
#include "grammar/grammar.h"

namespace calla {

enum class ApiKind : uint8_t { kChat, kCompletions, kResponses, kMessages };

// Where the bytes of one answer go. Calls come one at a time, from any thread, and must not block. Either send(), or
// accept() and then, of a stream, write() any number of times and finish(), else send().
class ApiOutput {
 public:
  virtual ~ApiOutput() = default;
  // The request is accepted and will be answered, by a stream of server-sent events or a JSON body.
  virtual void accept(bool stream) = 0;
  // False: nobody reads any more. That cancels the answer.
  virtual bool write(std::string_view events) = 0;
  virtual void finish() = 0;
  // Before finish(), or the send() of a whole answer: what it took, one Generation (without text and tokens) a choice.
  virtual void complete(std::span<const ApiAnswer> answers) { (void)answers; }
  // The whole answer, or an error's. 503 deserves a Retry-After.
  virtual void send(int status, std::string json) = 0;
};

// An answer that is being given.
class ApiCall {
 public:
  virtual ~ApiCall() = default;
  // Nobody waits for it any more. Thread-safe; may be called from inside an ApiOutput, and when all is done.
  virtual void cancel() = 0;
};

struct ApiOptions {
  std::string name;  // of the model; "": Model::name()
  ApiDefaults defaults;
};

// Answers requests with one model. Thread-safe. The model and the service must outlive it, and it must outlive the
// answers: stop the service first.
class Api {
 public:
  // Takes a moment, to build the vocabulary of the grammars. Errors: those of GrammarVocabulary::build.
  static Result<std::unique_ptr<Api>> create(Model& model, Service& service, ApiOptions options);

  // Reads the request and queues it; the answer then comes by itself. A request that is refused is answered at once and
  // has no call.
  std::shared_ptr<ApiCall> answer(ApiKind kind, std::string_view body, std::shared_ptr<ApiOutput> output);

  // The body of POST /v1/messages/count_tokens: {"input_tokens": …} for the body of a request to /v1/messages.
  ApiResult<std::string> count_tokens(std::string_view body);

 private:
  Api(Model& model, Service& service, ApiOptions options, GrammarVocabulary vocabulary);
  ApiResult<ApiRequest> parse(ApiKind kind, std::string_view body) const;
  std::unique_ptr<AnswerWriter> writer(ApiKind kind, ApiRequest& request) const;
  Result<std::vector<ChatPrompt>> prompts(ApiRequest& request);
  ApiResult<std::vector<ServiceRequest>> requests(ApiRequest& request);
  Result<std::shared_ptr<const Grammar>> grammar(const ApiRequest& request);
  Result<std::shared_ptr<const Grammar>> compile(const ApiRequest& request) const;

  Model& model_;
  Service& service_;
  ApiOptions options_;
  AnswerMemory memory_;
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;

  // What a client asked for last it asks for again, and a grammar learns while it is used.
  std::mutex grammars_mutex_;
  std::list<std::pair<std::string, std::shared_ptr<const Grammar>>> grammars_;  // the last used first
};

}  // namespace calla
