#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/generate.h"
#include "engine/model.h"
#include "text/chat_template.h"
#include "text/tool_types.h"

namespace calla {

// The tokens of recent answers, by the tokens that led to them. A client sends an answer back as text, often without
// its reasoning or with its calls printed anew; read like that, the next prompt would leave the path of tokens that the
// model went. Where what people see of a turn is still what was generated, its own tokens stand in for the client's
// version, so that the state that is there can be used.
//
// Thread-safe. Holds at most 1,024 answers and 2 Mi tokens, the ones used last.
class AnswerMemory {
 public:
  AnswerMemory();
  ~AnswerMemory();

  // Remembers an answer. prompt: as it was read, ending with the header of the answer. tools: those that the answer's
  // calls were read with, or null. Ignored: what was ended by a stop string, whose text nobody saw, and prompts without
  // such a header.
  void remember(const Model& model, std::span<const int32_t> prompt, const Generation& answer,
                std::shared_ptr<const ToolTypes> tools);

  struct Record;
  // The answer that was given after these tokens and whose visible part is that of `message`, or null.
  std::shared_ptr<const Record> recall(std::span<const int32_t> header, const ChatMessage& message);

 private:
  uint64_t key(std::span<const int32_t> tokens) const;
  struct Entry {
    uint64_t key;
    std::shared_ptr<const Record> record;
  };
  const uint64_t seed_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
  std::unordered_multimap<uint64_t, std::list<Entry>::iterator> by_key_;
  size_t tokens_ = 0;
};

// A conversation for a ServiceRequest.
struct ChatPrompt {
  std::vector<int32_t> ids;
  // Ends of the headers of turns: of the first after the system's, of each question of the user and of the answer that
  // follows it, and of the last.
  std::vector<int> boundaries;
  bool in_reasoning = false;
};

// The conversation as tokens, with the model's own in the turns that are rendered with their reasoning. Where thinking
// is off, preserve_thinking is on: then a prompt and its answer are the beginning of the next prompt. Errors: those of
// Model::encode.
Result<ChatPrompt> encode_chat(const Model& model, Conversation conversation, AnswerMemory& memory);

}  // namespace calla
