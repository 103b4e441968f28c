#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace calla {

// Byte-pair encoding by merge rank: start with one token for each byte; as long as a neighbouring pair has a rank,
// merge the pair of the lowest rank, of equal ones the leftmost. Thread safety: const methods from any number of
// threads.
class Bpe {
 public:
  static constexpr int32_t kMaxIds = 1 << 20;  // ids are below
  static constexpr size_t kMaxMerges = 1 << 23;

  struct Merge {
    int32_t left, right;  // these two tokens
    int32_t merged;       // become this one
  };

  Bpe() = default;
  // byte_ids: the tokens of the 256 bytes. The rank of a merge is its index. If a pair occurs twice, the error is the
  // index of its second merge. REQUIRES: ids in [0, kMaxIds), at most kMaxMerges merges.
  static tl::expected<Bpe, size_t> make(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges);

  // Appends the tokens of `piece`, which is shorter than 4 GiB. O(n log n).
  void encode(std::string_view piece, std::vector<int32_t>& out) const;

  // The two ways encode works; both give the same. Scanning for the lowest rank is O(n²) but the faster one for short
  // pieces.
  static constexpr size_t kScanLimit = 64;
  void encode_scan(std::string_view piece, std::vector<int32_t>& out) const;  // REQUIRES: piece.size() <= kScanLimit
  void encode_heap(std::string_view piece, std::vector<int32_t>& out) const;

 private:
  // A slot of the hash table is one word, so that a look-up costs one cache miss: left (20 bits), right (20), rank
  // (24). An empty slot is all ones, so its rank reads as kNoRank.
  static constexpr int kRankBits = 24;
  static constexpr uint32_t kNoRank = (1 << kRankBits) - 1;
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  // The slot of this pair, or the empty one where it would be.
  size_t slot(int32_t left, int32_t right) const {
    const uint64_t key = static_cast<uint64_t>(left) << 20 | static_cast<uint64_t>(right);
    size_t i = (key * 0x9e3779b97f4a7c15ull) >> shift_;  // Fibonacci hashing: the high bits are the well-mixed ones
    while (slots_[i] >> kRankBits != key && slots_[i] != kEmpty) i = (i + 1) & (slots_.size() - 1);
    return i;
  }
  uint32_t rank(int32_t left, int32_t right) const {
    return static_cast<uint32_t>(slots_[slot(left, right)]) & kNoRank;
  }
  uint32_t byte_rank(char left, char right) const {
    return byte_ranks_[static_cast<size_t>(static_cast<uint8_t>(left)) << 8 | static_cast<uint8_t>(right)];
  }

  std::array<int32_t, 256> byte_ids_{};
  std::vector<uint32_t> byte_ranks_;  // [256, 256]: the ranks of pairs of bytes, about half of all look-ups
  std::vector<uint64_t> slots_;       // open addressing; a power of two, at most half full
  int shift_ = 0;                     // 64 - log2(slots)
  std::vector<int32_t> merged_;       // [merges]
};

}  // namespace calla
