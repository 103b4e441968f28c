#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace calla {

// Byte-pair encoding by merge rank: start with one token for each byte; as long as a neighbouring pair has a rank,
// merge the pair of the lowest rank, of equal ones the leftmost. Thread safety: encode may run on any number of threads
// once all merges are added.
class Bpe {
 public:
  void set_byte(uint8_t byte, int32_t id) { byte_ids_[byte] = id; }

  // Makes room for `merges` merges. Must be called before add_merge.
  void reserve(size_t merges);

  // The merge of the next rank: left right → merged. False if this pair already has a rank.
  // REQUIRES: ids >= 0, and at most as many calls as reserved.
  [[nodiscard]] bool add_merge(int32_t left, int32_t right, int32_t merged);

  // Appends the tokens of `piece`, which is shorter than 4 GiB. O(n log n).
  void encode(std::string_view piece, std::vector<int32_t>& out) const;

  // The two ways encode works; both give the same. Scanning for the lowest rank is O(n²) but the faster one for short
  // pieces.
  static constexpr size_t kScanLimit = 64;
  void encode_scan(std::string_view piece, std::vector<int32_t>& out) const;  // REQUIRES: piece.size() <= kScanLimit
  void encode_heap(std::string_view piece, std::vector<int32_t>& out) const;

 private:
  static constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
  struct Merge {
    int32_t left = -1;  // -1: an empty slot
    int32_t right = -1;
    int32_t merged = -1;
    uint32_t rank = kNoRank;
  };
  size_t slot(int32_t left, int32_t right) const;
  // The merge of this pair, or an empty one.
  const Merge& find(int32_t left, int32_t right) const { return merges_[slot(left, right)]; }

  std::array<int32_t, 256> byte_ids_{};
  std::vector<Merge> merges_{1};  // open addressing, a power of two, at most half full
  uint32_t count_ = 0;
};

}  // namespace calla
