#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/random.h"

namespace calla {
namespace {

// A few bytes and random merges over them, which, unlike a trained vocabulary's, need not have lower ranks for shorter
// tokens.
struct Model {
  std::array<int32_t, 256> byte_ids{};
  std::vector<Bpe::Merge> merges;

  Model(Random& random, int letters, int merge_count) {
    for (int i = 0; i < 256; ++i) byte_ids[static_cast<size_t>(i)] = 255 - i;
    std::vector<int32_t> tokens;
    for (int i = 0; i < letters; ++i) tokens.push_back(byte_ids[static_cast<size_t>('a' + i)]);
    std::map<std::pair<int32_t, int32_t>, bool> seen;
    for (int i = 0; i < merge_count; ++i) {
      const int32_t left = tokens[random.below(tokens.size())];
      const int32_t right = tokens[random.below(tokens.size())];
      if (seen[{left, right}]) continue;
      seen[{left, right}] = true;
      tokens.push_back(256 + i);
      merges.push_back({left, right, 256 + i});
    }
  }
};

// As the definition says it.
std::vector<int32_t> encode_plain(const Model& model, const std::string& piece) {
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(model.byte_ids[static_cast<uint8_t>(c)]);
  for (;;) {
    size_t best = ids.size();
    size_t best_rank = model.merges.size();
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (model.merges[rank].left == ids[i] && model.merges[rank].right == ids[i + 1]) {
          best = i;
          best_rank = rank;
        }
      }
    }
    if (best == ids.size()) return ids;
    ids[best] = model.merges[best_rank].merged;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, BothWaysEqualTheDefinition) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const int letters = 1 + static_cast<int>(random.below(4));
    const Model model(random, letters, static_cast<int>(random.below(60)));
    const auto bpe = Bpe::make(model.byte_ids, model.merges);
    ASSERT_TRUE(bpe);
    for (size_t length = 0; length <= Bpe::kScanLimit; ++length) {
      std::string piece;
      while (piece.size() < length) piece += static_cast<char>('a' + random.below(static_cast<uint64_t>(letters)));
      const std::vector<int32_t> expected = encode_plain(model, piece);
      std::vector<int32_t> scan{-1}, heap{-1};
      bpe->encode_scan(piece, scan);
      bpe->encode_heap(piece, heap);
      ASSERT_EQ(std::vector(scan.begin() + 1, scan.end()), expected) << piece;
      ASSERT_EQ(std::vector(heap.begin() + 1, heap.end()), expected) << piece;
    }
  }
}

TEST(Bpe, BothSidesOfTheScanLimit) {
  Random random(4);
  const Model model(random, 3, 40);
  const auto bpe = Bpe::make(model.byte_ids, model.merges);
  ASSERT_TRUE(bpe);
  for (size_t length : {Bpe::kScanLimit - 1, Bpe::kScanLimit, Bpe::kScanLimit + 1, size_t{500}}) {
    std::string piece;
    while (piece.size() < length) piece += static_cast<char>('a' + random.below(3));
    std::vector<int32_t> ids;
    bpe->encode(piece, ids);
    EXPECT_EQ(ids, encode_plain(model, piece));
  }
}

TEST(Bpe, ARepeatedMergeIsAnError) {
  Random random(5);
  Model model(random, 3, 20);
  model.merges.push_back(model.merges[2]);
  const auto bpe = Bpe::make(model.byte_ids, model.merges);
  ASSERT_FALSE(bpe);
  EXPECT_EQ(bpe.error(), model.merges.size() - 1);
}

TEST(Bpe, LongRunsDoNotHang) {
  std::array<int32_t, 256> byte_ids{};
  for (int i = 0; i < 256; ++i) byte_ids[static_cast<size_t>(i)] = i;
  const Bpe::Merge merges[] = {{'a', 'a', 256}, {256, 256, 257}, {257, 257, 258}};
  const auto bpe = Bpe::make(byte_ids, merges);
  ASSERT_TRUE(bpe);
  std::vector<int32_t> ids;
  bpe->encode(std::string(1 << 20, 'a'), ids);
  EXPECT_EQ(ids, std::vector<int32_t>((1 << 20) / 8, 258));
}

}  // namespace
}  // namespace calla
