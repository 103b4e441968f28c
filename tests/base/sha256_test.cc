#include "base/sha256.h"

#include <gtest/gtest.h>

namespace calla {
namespace {

// The examples of FIPS 180-4's companion document, and every length around the padding's edges against a fixed chain.
TEST(Sha256, KnownVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, EveryLengthAroundTheBlockEdges) {
  // The hash of the concatenated hashes of "", "a", "aa", … 130 times "a"; from Python's hashlib.
  std::string chain;
  for (int n = 0; n <= 130; ++n) chain += sha256_hex(std::string(n, 'a'));
  EXPECT_EQ(sha256_hex(chain), "5eee4c50e1b5ec4f1a47f34c25ca988850b49da7904f5ab1b3abc5cc0ae66ef9");
}

}  // namespace
}  // namespace calla
