#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"

namespace calla {

tl::expected<Bpe, size_t> Bpe::make(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges) {
  CHECK(merges.size() <= kMaxMerges, "ranks must fit their bits");
  Bpe bpe;
  bpe.byte_ids_ = byte_ids;
  const size_t slots = std::bit_ceil(4 * merges.size() + 2);
  bpe.slots_.assign(slots, kEmpty);
  bpe.shift_ = 64 - std::countr_zero(slots);
  bpe.merged_.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto [left, right, merged] = merges[i];
    uint64_t& word = bpe.slots_[bpe.slot(left, right)];
    if (word != kEmpty) return tl::unexpected<size_t>(i);
    word = static_cast<uint64_t>(left) << (64 - 20) | static_cast<uint64_t>(right) << kRankBits | i;
    bpe.merged_.push_back(merged);
  }
  bpe.byte_ranks_.reserve(size_t{256} * 256);
  for (const int32_t left : byte_ids) {
    for (const int32_t right : byte_ids) bpe.byte_ranks_.push_back(bpe.rank(left, right));
  }
  return bpe;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out) const {
  piece.size() <= kScanLimit ? encode_scan(piece, out) : encode_heap(piece, out);
}

// Tokens stay where their first byte was, linked to their neighbours. keys[i] holds the rank of the pair that starts at
// i in its high bits and i in the low ones: the least key is the next merge, and a vector unit can find it.
void Bpe::encode_scan(std::string_view piece, std::vector<int32_t>& out) const {
  constexpr int kPositionBits = 6;
  static_assert(kScanLimit <= 1 << kPositionBits && kRankBits + kPositionBits < 31);
  constexpr int32_t kNever = static_cast<int32_t>(kNoRank) << kPositionBits;
  const size_t n = piece.size();
  if (n == 0) return;
  int32_t ids[kScanLimit];
  alignas(32) int32_t keys[kScanLimit];
  uint8_t next[kScanLimit + 1];
  uint8_t prev[kScanLimit + 1];
  const auto key = [](uint32_t rank, size_t i) { return static_cast<int32_t>(rank << kPositionBits | i); };
  for (size_t i = 0; i < n; ++i) {
    ids[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
    keys[i] = i + 1 < n ? key(byte_rank(piece[i], piece[i + 1]), i) : kNever;
    next[i] = static_cast<uint8_t>(i + 1);
    prev[i + 1] = static_cast<uint8_t>(i);
  }
  const size_t padded = (n + 7) / 8 * 8;
  std::fill(keys + n, keys + padded, kNever);
  for (;;) {
    int32_t least = kNever;
    for (size_t i = 0; i < padded; i += 8) {
      for (size_t j = 0; j < 8; ++j) least = std::min(least, keys[i + j]);
    }
    if (least == kNever) break;
    const size_t i = static_cast<size_t>(least) % (1 << kPositionBits);
    ids[i] = merged_[static_cast<size_t>(least) >> kPositionBits];
    const size_t gone = next[i];
    const size_t after = next[gone];
    keys[gone] = kNever;
    next[i] = static_cast<uint8_t>(after);
    prev[after] = static_cast<uint8_t>(i);
    keys[i] = after < n ? key(rank(ids[i], ids[after]), i) : kNever;
    if (i > 0) keys[prev[i]] = key(rank(ids[prev[i]], ids[i]), prev[i]);
  }
  for (size_t i = 0; i < n; i = next[i]) out.push_back(ids[i]);
}

void Bpe::encode_heap(std::string_view piece, std::vector<int32_t>& out) const {
  struct Node {
    int32_t id;
    uint32_t rank;  // of the pair (this, next)
    uint32_t prev, next;
  };
  const auto n = static_cast<uint32_t>(piece.size());
  std::vector<Node> nodes(n);
  // Rank in the high half and position in the low one, so the smallest entry is the next merge. An entry is stale, and
  // skipped, when its node's rank has changed since: a rank names one pair.
  std::vector<uint64_t> heap;
  const auto entry = [&](uint32_t i) { return static_cast<uint64_t>(nodes[i].rank) << 32 | i; };
  const auto update = [&](uint32_t i) {
    Node& a = nodes[i];
    a.rank = a.next == n ? kNoRank : rank(a.id, nodes[a.next].id);
    if (a.rank == kNoRank) return;
    heap.push_back(entry(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };

  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t r = i + 1 < n ? byte_rank(piece[i], piece[i + 1]) : kNoRank;
    nodes[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], r, i - 1, i + 1};
    if (r != kNoRank) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<uint32_t>(top);
    Node& a = nodes[i];
    if (a.rank != top >> 32) continue;
    Node& b = nodes[a.next];
    a.id = merged_[a.rank];
    a.next = b.next;
    b.rank = kNoRank;
    if (a.next != n) nodes[a.next].prev = i;
    update(i);
    if (i > 0) update(a.prev);
  }
  for (uint32_t i = 0; i < n; i = nodes[i].next) out.push_back(nodes[i].id);
}

}  // namespace calla
