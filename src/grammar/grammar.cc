#include "grammar/grammar.h"

#include <fmt/format.h>

#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "grammar/automaton.h"
#include "grammar/json_parts.h"
#include "grammar/json_schema.h"
#include "grammar/program.h"
#include "text/chat_json.h"

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kMaxCalls = 32;

// Line ends that the model writes after </think>.
uint32_t line_ends(ProgramBuilder& b, uint32_t next) {
  const uint32_t second = b.split({next, b.literal("\n", next)});
  return b.split({next, b.literal("\n", second)});
}

}  // namespace

struct Grammar::Shared {
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  GrammarProgram program;
  std::mutex mutex;                             // of what follows, and of all automata of this grammar
  std::shared_ptr<GrammarAutomaton> automaton;  // matchers move on to it from older ones
};

namespace {

Result<std::shared_ptr<const Grammar>> finished(std::shared_ptr<const GrammarVocabulary> vocabulary,
                                                ProgramBuilder& builder) {
  if (builder.full())
    return invalid(fmt::format("the schema needs a grammar of more than {} nodes", builder.kMaxNodes));
  auto shared = std::make_unique<Grammar::Shared>();
  if (const std::string rule = builder.finish(shared->program); !rule.empty()) {
    return invalid(fmt::format("{} refers to itself without end", rule));
  }
  if (shared->program.heights[shared->program.rules[0].entry] > GrammarProgram::kMaxNesting) {
    return invalid("no document of finite depth satisfies the schema");
  }
  shared->vocabulary = std::move(vocabulary);
  shared->automaton = std::make_shared<GrammarAutomaton>(shared->program, *shared->vocabulary);
  return std::make_shared<const Grammar>(std::move(shared));
}

}  // namespace

Grammar::Grammar(std::unique_ptr<Shared> shared) : shared_(std::move(shared)) {}
Grammar::~Grammar() = default;

const GrammarVocabulary& Grammar::vocabulary() const {
  return *shared_->vocabulary;
}

Result<std::shared_ptr<const Grammar>> Grammar::json_schema(std::shared_ptr<const GrammarVocabulary> vocabulary,
                                                            const Json& schema) {
  if (deeper_than(schema, kMaxJsonDepth))
    return invalid(fmt::format("the schema is nested deeper than {}", kMaxJsonDepth));
  ProgramBuilder builder;
  JsonParts parts(builder, std::nullopt);
  SchemaCompiler compiler(parts, schema, "", true);
  parts.add_rule("#", false, [&](uint32_t end) -> Result<uint32_t> {
    CALLA_ASSIGN(const uint32_t value, compiler.root_value(end));
    return line_ends(builder, value);
  });
  CALLA_TRY(parts.write_rules());
  return finished(std::move(vocabulary), builder);
}

std::shared_ptr<const Grammar> Grammar::json_object(std::shared_ptr<const GrammarVocabulary> vocabulary) {
  auto grammar = json_schema(std::move(vocabulary), Json{{"type", "object"}});
  CHECK(grammar, "any object has a grammar");
  return *grammar;
}

Result<std::shared_ptr<const Grammar>> Grammar::tool_calls(std::shared_ptr<const GrammarVocabulary> vocabulary,
                                                           std::span<const GrammarTool> tools, bool parallel,
                                                           const Json* answer) {
  if (tools.empty()) return invalid("there are no tools to call");
  if (!vocabulary->tool_call || !vocabulary->tool_call_end)
    return invalid("the tokenizer has no <tool_call> and </tool_call>");
  if (answer != nullptr && deeper_than(*answer, kMaxJsonDepth))
    return invalid(fmt::format("the schema is nested deeper than {}", kMaxJsonDepth));
  ProgramBuilder b;
  // What would end a value, or look like another call, to who reads the answer.
  JsonParts parts(b, without_words({"</parameter>", "<parameter=", "<function=", "<tool_call>", "</tool_call>"}));
  static const Json kNoParameters = Json{{"type", "object"}, {"additionalProperties", false}};
  std::deque<SchemaCompiler> compilers;
  const auto one_of_them = [&](uint32_t next) -> Result<uint32_t> {
    const uint32_t end = b.literal("</function>\n", b.control(*vocabulary->tool_call_end, next));
    std::vector<uint32_t> ways;
    for (const GrammarTool& tool : tools) {
      if (tool.name.empty() || tool.name.find_first_of("<>\n") != tool.name.npos) {
        return invalid(fmt::format("a tool is called \"{}\", which a tool call cannot hold", tool.name));
      }
      const Json& schema = tool.parameters != nullptr ? *tool.parameters : kNoParameters;
      if (deeper_than(schema, kMaxJsonDepth)) {
        return invalid(fmt::format("the parameters of {} are nested deeper than {}", tool.name, kMaxJsonDepth));
      }
      compilers.emplace_back(parts, schema, fmt::format("tool {}: ", tool.name), tool.strict);
      CALLA_ASSIGN(const uint32_t parameters, compilers.back().root_parameters(end));
      ways.push_back(b.literal(tool.name, b.literal(">\n", parameters)));
      if (b.full()) break;
    }
    return b.control(*vocabulary->tool_call, b.literal("\n<function=", b.split(ways)));
  };
  uint32_t call = 0;
  const uint32_t root = parts.add_rule("tool calls", false, [&](uint32_t end) -> Result<uint32_t> {
    uint32_t more = end;
    if (parallel) {
      more = b.repeat(
          0, kMaxCalls - 1, [&](uint32_t again) { return b.literal("\n", b.call(call, again)); }, end);
    }
    const uint32_t calls = b.call(call, more);
    if (answer == nullptr) return line_ends(b, calls);
    compilers.emplace_back(parts, *answer, "", true);
    CALLA_ASSIGN(const uint32_t document, compilers.back().root_value(end));
    return line_ends(b, b.split({calls, document}));
  });
  CHECK(root == 0, "the root is the first rule");
  call = parts.add_rule("tool call", false, one_of_them);
  CALLA_TRY(parts.write_rules());
  return finished(std::move(vocabulary), b);
}

// ---- Matching ----

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  const std::lock_guard lock(grammar_->shared_->mutex);
  automaton_ = grammar_->shared_->automaton;
  state_ = automaton_->start();
}

// The grammar's newest automaton, and a fresh one where that is full. REQUIRES: the lock is held.
void GrammarMatcher::move_on() {
  Grammar::Shared& shared = *grammar_->shared_;
  if (shared.automaton->full()) {
    shared.automaton = std::make_shared<GrammarAutomaton>(shared.program, *shared.vocabulary);
  }
  if (automaton_ == shared.automaton) return;
  state_ = shared.automaton->import(*automaton_, state_);
  automaton_ = shared.automaton;
}

void GrammarMatcher::mask(std::span<uint64_t> bits) {
  Grammar::Shared& shared = *grammar_->shared_;
  CHECK(bits.size() >= shared.vocabulary->words(), "a mask is shorter than the vocabulary");
  const std::lock_guard lock(shared.mutex);
  move_on();
  GrammarAutomaton::mask(automaton_, state_, bits);
  shared.automaton = automaton_;
  if (!automaton_->can_end(state_)) return;
  for (const int32_t id : shared.vocabulary->stop_ids()) bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

bool GrammarMatcher::accept(int32_t id) {
  Grammar::Shared& shared = *grammar_->shared_;
  const std::lock_guard lock(shared.mutex);
  if (shared.vocabulary->is_stop(id)) return automaton_->can_end(state_);
  move_on();
  const uint32_t to = automaton_->step_token(state_, id);
  if (to == GrammarAutomaton::kDead) return false;
  state_ = to;
  return true;
}

bool GrammarMatcher::can_end() const {
  const std::lock_guard lock(grammar_->shared_->mutex);
  return automaton_->can_end(state_);
}

}  // namespace calla
