#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace calla {

void Bpe::reserve(size_t merges) {
  CHECK(count_ == 0, "reserve comes before the first merge");
  merges_.assign(std::bit_ceil(2 * merges + 1), Merge{});
}

size_t Bpe::slot(int32_t left, int32_t right) const {
  const size_t mask = merges_.size() - 1;
  // Fibonacci hashing; the high half of the product is the well-mixed one.
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  size_t i = ((key * 0x9e3779b97f4a7c15ull) >> 32) & mask;
  while (merges_[i].left >= 0 && (merges_[i].left != left || merges_[i].right != right)) i = (i + 1) & mask;
  return i;
}

bool Bpe::add_merge(int32_t left, int32_t right, int32_t merged) {
  CHECK(2 * static_cast<size_t>(count_) < merges_.size(), "more merges than reserved");
  Merge& m = merges_[slot(left, right)];
  if (m.left >= 0) return false;
  m = {left, right, merged, count_++};
  return true;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out) const {
  piece.size() <= kScanLimit ? encode_scan(piece, out) : encode_heap(piece, out);
}

void Bpe::encode_scan(std::string_view piece, std::vector<int32_t>& out) const {
  size_t n = piece.size();
  if (n == 0) return;
  int32_t ids[kScanLimit];
  // Of the pair (i, i+1); rank kNoRank where it does not merge, and always at the last token.
  uint32_t ranks[kScanLimit];
  int32_t merged[kScanLimit];
  auto look_up = [&](size_t i) {
    const Merge& m = find(ids[i], ids[i + 1]);
    ranks[i] = m.rank;
    merged[i] = m.merged;
  };
  for (size_t i = 0; i < n; ++i) ids[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    const size_t i = static_cast<size_t>(std::min_element(ranks, ranks + n - 1) - ranks);
    if (ranks[i] == kNoRank) break;
    ids[i] = merged[i];
    --n;
    for (size_t j = i + 1; j < n; ++j) {
      ids[j] = ids[j + 1];
      ranks[j] = ranks[j + 1];
      merged[j] = merged[j + 1];
    }
    if (i > 0) look_up(i - 1);
    if (i + 1 < n) look_up(i);
  }
  out.insert(out.end(), ids, ids + n);
}

void Bpe::encode_heap(std::string_view piece, std::vector<int32_t>& out) const {
  struct Node {
    int32_t id;
    uint32_t rank;  // of the pair (this, next)
    int32_t merged;
    uint32_t prev, next;
  };
  const auto n = static_cast<uint32_t>(piece.size());
  std::vector<Node> nodes(n);
  auto look_up = [&](uint32_t i) {
    Node& a = nodes[i];
    if (a.next == n) {
      a.rank = kNoRank;
      return;
    }
    const Merge& m = find(a.id, nodes[a.next].id);
    a.rank = m.rank;
    a.merged = m.merged;
  };
  // Rank in the high half and position in the low one, so the smallest entry is the next merge. An entry is stale, and
  // skipped, when its node's rank has changed since: a rank names one pair.
  std::vector<uint64_t> heap;
  auto entry = [&](uint32_t i) { return static_cast<uint64_t>(nodes[i].rank) << 32 | i; };
  auto push = [&](uint32_t i) {
    look_up(i);
    if (nodes[i].rank == kNoRank) return;
    heap.push_back(entry(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };

  for (uint32_t i = 0; i < n; ++i) nodes[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], kNoRank, -1, i - 1, i + 1};
  for (uint32_t i = 0; i < n; ++i) {
    look_up(i);
    if (nodes[i].rank != kNoRank) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<uint32_t>(top);
    if (nodes[i].rank != top >> 32) continue;
    Node& a = nodes[i];
    Node& b = nodes[a.next];
    a.id = a.merged;
    a.next = b.next;
    b.rank = kNoRank;
    if (a.next != n) nodes[a.next].prev = i;
    push(i);
    if (i > 0) push(a.prev);
  }
  for (uint32_t i = 0; i < n; i = nodes[i].next) out.push_back(nodes[i].id);
}

}  // namespace calla
