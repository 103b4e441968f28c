#pragma once

#include <cstdint>
#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/runner.h"
#include "engine/snapshot_store.h"

namespace calla {

// Snapshots of sequences, found by the tokens that led to them and by nothing else. They lie in a radix tree, so a
// prompt finds the deepest snapshot on its own path, however many other paths there are, and how far its path is known
// at all.
//
// Where memory is short, the snapshot goes that is missed least: the one with the smallest sum of the tokens that would
// have to be read again without it (from the next shallower snapshot) and of a clock that its last use set (the rule
// GreedyDual: least recently used where the costs are equal, and a shared preamble of thousands of tokens outlives many
// small steps). Snapshots of side requests go before all others, and never take the place of one of them.
//
// With a store, snapshots that are worth it are also written to disk, and are found there when memory has let go of
// them or the process is another one: those that lie an eighth of their length, and at least 256 tokens, beyond the one
// before them on their path that is on disk, so that what is written stays in proportion to what is said.
//
// Not thread-safe: used by the thread that uses the runner, which must outlive it.
class PrefixCache {
 public:
  // budget: bytes for the states of the snapshots. The pages that they hold are the runner's.
  PrefixCache(Runner& runner, uint64_t budget, std::unique_ptr<SnapshotStore> store = nullptr);
  ~PrefixCache();

  struct Hit {
    std::shared_ptr<const Sequence> snapshot;  // the deepest whose tokens begin the prompt; null: none
    std::vector<float> logits;                 // of its last token; there if the snapshot is the whole prompt
    int known = 0;                             // tokens of the prompt that some snapshot's tokens begin with
    std::vector<int32_t> instead;  // at most 16 tokens that were there in place of the prompt's, most recent path
  };
  // A snapshot of the whole prompt counts only where its logits are there. What is found is as good as new to
  // make_room().
  Hit find(std::span<const int32_t> prompt);

  // Where find() would start; nothing is touched.
  int depth(std::span<const int32_t> prompt) const;
  // Whether there is a snapshot of exactly these tokens.
  bool has(std::span<const int32_t> tokens) const;
  // Takes a sequence as a snapshot. logits: those of its last token, or empty. side: for a side request.
  void put(std::unique_ptr<const Sequence> sequence, std::span<const float> logits, bool side);
  // Drops one snapshot, so that its pages can be used. False: there is none.
  bool make_room();

  // Between passes: hears from the store, and gives it the next snapshot to write. Returns lines for the log.
  std::vector<std::string> tidy();
  // Writes what is still worth it, at the end; may take seconds.
  std::vector<std::string> flush();

  int count() const { return static_cast<int>(kept_.size()); }
  uint64_t bytes() const { return bytes_; }
  int files() const { return store_ == nullptr ? 0 : store_->count(); }
  uint64_t file_bytes() const { return store_ == nullptr ? 0 : store_->bytes(); }

 private:
  struct Node;
  struct Step {
    Node* node;    // the deepest node whose tokens all begin the path
    int matched;   // of the path; inside an edge of a child where more than node's depth
    Node* inside;  // that child, or null
  };
  Step walk(std::span<const int32_t> path) const;
  static Node* serving(Node* node, std::span<const int32_t> prompt);
  Node* fetch(std::span<const int32_t> prompt);
  void keep(Node* node, std::shared_ptr<const Sequence> snapshot);
  void make_budget(const Node& newest, bool side);
  void forget_file(Node* node);
  void hear(SnapshotStore::News news, std::vector<std::string>& lines);
  Node* worth_storing(int least) const;
  Node* insert(std::span<const int32_t> path);
  void touch(Node* node);
  uint64_t bytes_of(const Node& node) const;
  Node* victim(bool side_only) const;
  void drop(Node* node);
  void prune(Node* node);

  Runner& runner_;
  const uint64_t budget_;
  std::unique_ptr<Node> root_;
  std::list<Node*> kept_;  // nodes with a snapshot, the last used first
  uint64_t bytes_ = 0;
  int64_t clock_ = 0;
  std::unique_ptr<SnapshotStore> store_;
  std::map<std::filesystem::path, Node*> by_file_;
  bool changed_ = false;  // since worth_storing() found nothing
};

}  // namespace calla
