#include "engine/prefix_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace calla {
namespace {

constexpr size_t kInstead = 16;
constexpr int kWorthLoading = 64;   // tokens
constexpr int kWorthStoring = 256;  // tokens, while answers are given
constexpr int kWorthStoringAtTheEnd = 64;

}  // namespace

// A stretch of tokens. Nodes without a snapshot or file are where paths part.
struct PrefixCache::Node {
  Node* parent = nullptr;
  std::vector<int32_t> edge;                          // from the parent
  int depth = 0;                                      // tokens from the root to the end of the edge
  std::map<int32_t, std::unique_ptr<Node>> children;  // by the first token of their edge
  std::shared_ptr<const Sequence> snapshot;
  std::vector<float> logits;
  std::filesystem::path file;  // the same on disk, or ""
  bool side = false;
  int64_t clock = 0;  // when it was last used
  std::list<Node*>::iterator place;

  // Tokens to read again if there were no snapshot here.
  int cost() const {
    const Node* above = parent;
    while (above != nullptr && above->snapshot == nullptr) above = above->parent;
    return depth - (above == nullptr ? 0 : above->depth);
  }
};

PrefixCache::PrefixCache(Runner& runner, uint64_t budget, std::unique_ptr<SnapshotStore> store)
    : runner_(runner), budget_(budget), root_(std::make_unique<Node>()), store_(std::move(store)) {
  if (store_ == nullptr) return;
  for (SnapshotStore::File& f : store_->take_files()) {
    Node* const node = insert(f.tokens);
    node->file = f.path;
    by_file_[std::move(f.path)] = node;
  }
}

PrefixCache::~PrefixCache() = default;

PrefixCache::Step PrefixCache::walk(std::span<const int32_t> path) const {
  Node* node = root_.get();
  while (node->depth < static_cast<int>(path.size())) {
    const auto child = node->children.find(path[node->depth]);
    if (child == node->children.end()) return {node, node->depth, nullptr};
    const auto& edge = child->second->edge;
    const auto rest = path.subspan(node->depth);
    const auto apart = std::mismatch(edge.begin(), edge.end(), rest.begin(), rest.end()).first;
    if (apart != edge.end()) return {node, node->depth + static_cast<int>(apart - edge.begin()), child->second.get()};
    node = child->second.get();
  }
  return {node, node->depth, nullptr};
}

PrefixCache::Hit PrefixCache::find(std::span<const int32_t> prompt) {
  const Step at = walk(prompt);
  Hit hit;
  hit.known = at.matched;
  if (at.matched < static_cast<int>(prompt.size())) {
    const Node* other = at.inside;
    size_t from = other == nullptr ? 0 : at.matched - at.node->depth;
    if (other == nullptr && !at.node->children.empty()) {
      const auto newest =
          std::ranges::max_element(at.node->children, {}, [](const auto& c) { return c.second->clock; });
      other = newest->second.get();
    }
    if (other != nullptr) {
      const size_t to = std::min(other->edge.size(), from + kInstead);
      hit.instead.assign(other->edge.begin() + from, other->edge.begin() + to);
    }
  }
  Node* const node = fetch(prompt);
  if (node == nullptr) return hit;
  touch(node);
  hit.snapshot = node->snapshot;
  if (node->depth == static_cast<int>(prompt.size())) hit.logits = node->logits;
  make_budget(*node, node->side);
  return hit;
}

// The deepest node at or above `node` that an answer to the prompt can start from, or null.
PrefixCache::Node* PrefixCache::serving(Node* node, std::span<const int32_t> prompt) {
  const auto serves = [&](const Node& n) {
    const bool whole = n.depth == static_cast<int>(prompt.size());
    return n.snapshot != nullptr ? !whole || !n.logits.empty() : !n.file.empty() && !whole;
  };
  while (node != nullptr && !serves(*node)) node = node->parent;
  return node;
}

// The same, with its snapshot in memory.
PrefixCache::Node* PrefixCache::fetch(std::span<const int32_t> prompt) {
  Node* node = serving(walk(prompt).node, prompt);
  while (node != nullptr && node->snapshot == nullptr) {
    if (node->cost() < kWorthLoading) {
      node = serving(node->parent, prompt);
      continue;
    }
    auto loaded = store_->load(node->file);
    while (!loaded && loaded.error().code == Error::Code::kMemory && make_room()) loaded = store_->load(node->file);
    if (loaded) {
      keep(node, std::move(*loaded));
    } else if (loaded.error().code == Error::Code::kMemory) {
      node = serving(node->parent, prompt);
    } else {
      forget_file(node);
      node = serving(walk(prompt).node, prompt);
    }
  }
  return node;
}

int PrefixCache::depth(std::span<const int32_t> prompt) const {
  const Node* node = serving(walk(prompt).node, prompt);
  return node == nullptr ? 0 : node->depth;
}

bool PrefixCache::has(std::span<const int32_t> tokens) const {
  const Step at = walk(tokens);
  return at.node->depth == static_cast<int>(tokens.size()) && at.node->snapshot != nullptr;
}

// The node and all above it are used now: whoever needs the deep one was served by the shallow ones before.
void PrefixCache::touch(Node* node) {
  for (; node != nullptr; node = node->parent) {
    node->clock = clock_;
    if (node->snapshot != nullptr) kept_.splice(kept_.begin(), kept_, node->place);
  }
}

PrefixCache::Node* PrefixCache::insert(std::span<const int32_t> path) {
  const Step at = walk(path);
  Node* node = at.node;
  if (at.inside != nullptr) {  // cut its edge in two
    auto& slot = node->children[path[node->depth]];
    std::unique_ptr<Node> lower = std::move(slot);
    const size_t cut = at.matched - node->depth;
    slot = std::make_unique<Node>();
    slot->parent = node;
    slot->depth = at.matched;
    slot->clock = lower->clock;
    slot->edge.assign(lower->edge.begin(), lower->edge.begin() + cut);
    lower->edge.erase(lower->edge.begin(), lower->edge.begin() + cut);
    lower->parent = slot.get();
    node = slot.get();
    node->children[lower->edge[0]] = std::move(lower);
  }
  if (at.matched == static_cast<int>(path.size())) return node;
  auto leaf = std::make_unique<Node>();
  leaf->parent = node;
  leaf->depth = static_cast<int>(path.size());
  leaf->edge.assign(path.begin() + at.matched, path.end());
  return (node->children[path[at.matched]] = std::move(leaf)).get();
}

uint64_t PrefixCache::bytes_of(const Node& node) const {
  return runner_.state_bytes() + node.logits.size() * sizeof(float) + node.depth * sizeof(int32_t);
}

void PrefixCache::put(std::unique_ptr<const Sequence> sequence, std::span<const float> logits, bool side) {
  if (sequence->position() == 0) return;
  Node* const node = insert(sequence->tokens());
  if (node->snapshot == nullptr) {
    node->side = side;
    keep(node, std::move(sequence));
  } else {
    node->side &= side;
  }
  if (!logits.empty()) {
    bytes_ -= bytes_of(*node);
    node->logits.assign(logits.begin(), logits.end());
    bytes_ += bytes_of(*node);
  }
  touch(node);
  make_budget(*node, side);
}

void PrefixCache::keep(Node* node, std::shared_ptr<const Sequence> snapshot) {
  node->snapshot = std::move(snapshot);
  kept_.push_front(node);
  node->place = kept_.begin();
  bytes_ += bytes_of(*node);
  changed_ = true;
}

// Keeps to the budget after a snapshot has come.
void PrefixCache::make_budget(const Node& newest, bool side) {
  const bool side_only = side && newest.side;
  while (bytes_ > budget_) drop(victim(side_only));
}

PrefixCache::Node* PrefixCache::victim(bool side_only) const {
  Node* worst = nullptr;
  std::pair<bool, int64_t> least;
  for (Node* node : kept_) {
    if (side_only && !node->side) continue;
    const std::pair value(!node->side, node->clock + node->cost());
    if (worst == nullptr || value <= least) {  // of equals, the one that was used longest ago
      worst = node;
      least = value;
    }
  }
  return worst;
}

bool PrefixCache::make_room() {
  if (kept_.empty()) return false;
  drop(victim(false));
  return true;
}

void PrefixCache::drop(Node* node) {
  clock_ = std::max(clock_, node->clock + node->cost());
  bytes_ -= bytes_of(*node);
  kept_.erase(node->place);
  node->snapshot = nullptr;
  node->logits = {};
  prune(node);
}

// Takes away nodes that say nothing any more, and joins an edge that need not be cut.
void PrefixCache::prune(Node* node) {
  const auto says_nothing = [](const Node& n) {
    return n.parent != nullptr && n.snapshot == nullptr && n.file.empty();
  };
  while (says_nothing(*node) && node->children.empty()) {
    Node* const parent = node->parent;
    parent->children.erase(node->edge[0]);
    node = parent;
  }
  if (!says_nothing(*node) || node->children.size() != 1) return;
  std::unique_ptr<Node> child = std::move(node->children.begin()->second);
  child->edge.insert(child->edge.begin(), node->edge.begin(), node->edge.end());
  child->parent = node->parent;
  node->parent->children[child->edge[0]] = std::move(child);  // ends the life of `node`
}

void PrefixCache::forget_file(Node* node) {
  by_file_.erase(node->file);
  node->file.clear();
  prune(node);
}

std::vector<std::string> PrefixCache::tidy() {
  if (store_ == nullptr) return {};
  std::vector<std::string> lines = store_->take_reports();
  if (auto news = store_->news()) hear(std::move(*news), lines);
  if (changed_ && store_->ready(0)) {
    if (Node* const node = worth_storing(kWorthStoring)) {
      store_->write(node->snapshot);
    } else {
      changed_ = false;
    }
  }
  return lines;
}

std::vector<std::string> PrefixCache::flush() {
  if (store_ == nullptr) return {};
  std::vector<std::string> lines;
  for (;;) {
    if (auto news = store_->wait()) hear(std::move(*news), lines);
    Node* const node = worth_storing(kWorthStoringAtTheEnd);
    if (node == nullptr) return lines;
    store_->write(node->snapshot);
  }
}

void PrefixCache::hear(SnapshotStore::News news, std::vector<std::string>& lines) {
  for (const auto& path : news.removed) {
    if (const auto found = by_file_.find(path); found != by_file_.end()) forget_file(found->second);
  }
  if (!news.path) {
    lines.push_back(fmt::format("no more snapshots are written to disk: {}", news.path.error().message));
    return;
  }
  Node* const node = insert(news.snapshot->tokens());
  node->file = *news.path;
  by_file_[std::move(*news.path)] = node;
}

// The shallowest snapshot that lies far enough beyond what is on disk, or null.
PrefixCache::Node* PrefixCache::worth_storing(int least) const {
  Node* best = nullptr;
  for (Node* node : kept_) {
    if (node->side || !node->file.empty() || (best != nullptr && best->depth <= node->depth)) continue;
    const Node* above = node->parent;
    while (above != nullptr && above->file.empty()) above = above->parent;
    const int gain = node->depth - (above == nullptr ? 0 : above->depth);
    if (gain >= std::max(least, node->depth / 8) && store_->ready(node->depth)) best = node;
  }
  return best;
}

}  // namespace calla
