#include "backend/cpu/routes.h"

#include <gtest/gtest.h>

namespace calla {
namespace {

using Format = Linear::Format;

TEST(Routes, ProductsAtTheEdges) {
  static_assert(product_route(Format::kAffine4, 2048, 1) == Product::kGemvInt8);
  static_assert(product_route(Format::kAffine4, 2048, 2) == Product::kGemvInt8);
  static_assert(product_route(Format::kAffine4, 2048, 3) == Product::kTileInt8);
  static_assert(product_route(Format::kAffine4, kNarrow, 2) == Product::kGemvF32);
  static_assert(product_route(Format::kAffine4, kNarrow, 3) == Product::kDotsF32);
  static_assert(product_route(Format::kAffine4, kNarrow + 1, 2) == Product::kGemvInt8);
  static_assert(product_route(Format::kAffine4, kNarrow + 1, 3) == Product::kTileInt8);
  static_assert(product_route(Format::kAffine8, 2048, 2) == Product::kGemvF32);
  static_assert(product_route(Format::kAffine8, 2048, 3) == Product::kDotsF32);
  static_assert(product_route(Format::kBf16, 2048, 1) == Product::kGemvF32);
  static_assert(product_route(Format::kBf16, 2048, 512) == Product::kDotsF32);
  static_assert(exact_route(2) == Product::kGemvF32 && exact_route(3) == Product::kDotsF32);
  static_assert(takes_int8(Product::kGemvInt8) && takes_int8(Product::kTileInt8));
  static_assert(!takes_int8(Product::kGemvF32) && !takes_int8(Product::kDotsF32));
  static_assert(outer_block(kLongStretches) == kRowBlock && outer_block(kLongStretches + 1) < kRowBlock);
  static_assert(kRowBlock % 16 == 0 && outer_block(1) % 16 == 0 && outer_block(512) % 16 == 0 &&
                outer_block(512) <= kRowBlock);
}

TEST(Routes, PlanesAtTheEdges) {
  static_assert(gate_up_planes(1) == 2 && gate_up_planes(kFineRows) == 2);
  static_assert(gate_up_planes(kFineRows + 1) == 1 && gate_up_planes(8192) == 1);
}

TEST(Routes, DeltaRuleAtTheEdges) {
  static_assert(!dense_state(kDenseStateFrom - 1));
  static_assert(dense_state(kDenseStateFrom));
}

TEST(Routes, AttentionIsSplitByTheBatchAlone) {
  static_assert(query_tokens(8, 1) == 1);
  static_assert(query_tokens(8, 512) == 16);
  static_assert(query_tokens(3, 512) == 42);
  static_assert(query_tokens(200, 512) == 1);
  static_assert(!in_strips(8) && !in_strips(kStripsFrom - 1));
  static_assert(in_strips(kStripsFrom) && in_strips(kTaskLanes));
  static_assert(page_parts(2, 1) == 1);
  static_assert(page_parts(2, 2 * kPagesPerPart - 1) == 1);
  static_assert(page_parts(2, 2 * kPagesPerPart) == 2);
  static_assert(page_parts(2, 4096) == 32);
  static_assert(page_parts(32, 4096) == 2);
  static_assert(page_parts(33, 4096) == 1);
  static_assert(page_parts(1000, 4096) == 1);
  for (int units = 1; units < 200; ++units) {
    for (int pages = 1; pages < 300; ++pages) {
      const int parts = page_parts(units, pages);
      EXPECT_TRUE(parts == 1 || units * parts <= kAttendSlots);
      EXPECT_LE(parts, pages);
    }
  }
}

}  // namespace
}  // namespace calla
