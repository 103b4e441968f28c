#pragma once

// A grammar as a program for a pushdown machine that reads bytes and control tokens.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace calla {

// A byte of lo..hi leads to node `to`.
struct ByteEdge {
  uint8_t lo, hi;
  uint32_t to;
};

// What a node does. The machine's stack holds frames: where a call returns to, or how often a loop has run.
struct GrammarNode {
  enum class Kind : uint8_t {
    kBytes,    // reads a byte: edges first … first + count. Edges may overlap
    kControl,  // reads the control token `arg`, goes to `to`
    kSplit,    // goes to each of the targets first … first + count; none: a dead end
    kCall,     // runs the rule `arg`, then goes to `to`
    kReturn,   // ends a rule
    kEnter,    // begins the loop `to`: pushes a count of 0
    kLoop,     // below max: counts and goes to the body `arg`; from min on: pops the count and goes to `to`
    kAgain,    // the end of a loop's body: goes back to the loop `to`
  };
  Kind kind = Kind::kSplit;
  uint32_t first = 0, count = 0;
  uint32_t to = 0, arg = 0;
  uint32_t min = 0, max = 0;
  // Of kBytes: whether any run of plain characters (vocabulary.h) leads back here; kCounted: one for each round that is
  // left to the loop on top of the stack, this one included.
  enum class Run : uint8_t { kNone, kEndless, kCounted };
  Run run = Run::kNone;
};

// Built once, then immutable.
struct GrammarProgram {
  static constexpr uint32_t kEndless = std::numeric_limits<uint32_t>::max();
  // Of heights: it cannot be completed.
  static constexpr uint8_t kNever = 255;
  // Containers of one document are nested this deep at most: what parse_json reads back.
  static constexpr int kMaxNesting = 64;

  struct Rule {
    uint32_t entry = 0;
    bool container = false;       // a call of it is one level of nesting
    bool nullable = false;        // may read nothing
    uint32_t begin = 0, end = 0;  // its nodes
    std::string name;             // for errors: where in the schema it comes from
  };
  std::vector<GrammarNode> nodes;
  std::vector<ByteEdge> edges;
  std::vector<uint32_t> targets;
  std::vector<Rule> rules;  // the first is the root
  // [nodes] the levels of nesting that completing the rule from here needs at least.
  std::vector<uint8_t> heights;
};

// Writes a program from back to front: a part is made with the node that follows it. Rules are written one after
// another. Beyond kMaxNodes nothing is added and full() is true.
class ProgramBuilder {
 public:
  static constexpr size_t kMaxNodes = 400'000;

  // A rule that may be called at once and is written later. REQUIRES: one of them is begun and ended at a time.
  uint32_t add_rule(std::string name, bool container, bool nullable = false);
  void begin_rule(uint32_t rule);
  void end_rule(uint32_t rule, uint32_t entry);

  uint32_t bytes(const std::vector<ByteEdge>& edges, GrammarNode::Run run = GrammarNode::Run::kNone);
  uint32_t byte_range(uint8_t lo, uint8_t hi, uint32_t next) { return bytes({{lo, hi, next}}); }
  uint32_t literal(std::string_view text, uint32_t next);
  // One of the texts. They share what they begin with.
  uint32_t words(std::vector<std::string> texts, uint32_t next);
  uint32_t control(int32_t id, uint32_t next);
  uint32_t split(const std::vector<uint32_t>& ways);
  uint32_t dead() { return split({}); }
  uint32_t call(uint32_t rule, uint32_t next);
  uint32_t ends();  // the end of a rule
  // `body` writes one round, given what follows it; it must read something.
  uint32_t repeat(uint32_t min, uint32_t max, const std::function<uint32_t(uint32_t next)>& body, uint32_t next);
  // For loops with several places: each is a kLoop node of its own with the same bounds, entered once.
  uint32_t loop(uint32_t min, uint32_t max, uint32_t next);
  uint32_t enter(uint32_t loop);
  uint32_t again(uint32_t loop);
  // A node to be set later, for cycles.
  uint32_t reserve();
  void set_split(uint32_t node, const std::vector<uint32_t>& ways);
  void set_loop_body(uint32_t loop, uint32_t body) { node(loop).arg = body; }

  // Adds the edges that read one character of lo..hi (scalar values; surrogates between are left out) as UTF-8.
  void add_characters(std::vector<ByteEdge>& edges, uint32_t lo, uint32_t hi, uint32_t next);

  bool full() const { return program_.nodes.size() >= kMaxNodes; }
  // Computes the heights. Empty on success, else the name of a rule that calls itself before it reads anything.
  std::string finish(GrammarProgram& out);

 private:
  GrammarNode& node(uint32_t i) { return program_.nodes[i]; }
  uint32_t add(GrammarNode n);
  uint32_t words(const std::string* first, const std::string* last, size_t depth, uint32_t next);

  GrammarProgram program_;
  // Tails of UTF-8 sequences that exist already.
  std::map<std::tuple<uint8_t, uint8_t, uint32_t>, uint32_t> tails_;
};

}  // namespace calla
