#include "base/checksum.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace calla {
namespace {

uint64_t sum(const std::vector<std::byte>& data, size_t cut = 0) {
  Checksum c;
  c.add(std::span(data).first(cut));
  c.add(std::span(data).subspan(cut));
  return c.value();
}

TEST(Checksum, EveryBitAndTheLengthCount) {
  for (const size_t size : {0, 1, 31, 32, 33, 100, 256}) {
    std::vector<std::byte> data(size);
    for (size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i * 37);
    std::set<uint64_t> seen{sum(data)};
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      EXPECT_TRUE(seen.insert(sum(data)).second);
      data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
    data.push_back({});
    EXPECT_TRUE(seen.insert(sum(data)).second) << "one zero more";
  }
}

TEST(Checksum, PiecesDoNotMatter) {
  std::vector<std::byte> data(1000, std::byte{7});
  for (size_t cut = 0; cut <= 992; cut += 32) EXPECT_EQ(sum(data, cut), sum(data));
}

}  // namespace
}  // namespace calla
