#pragma once

// Which kernel serves which shape: pure functions, tested at each edge and on both sides. Numbers were measured with
// bench/kernels_bench.cc.

#include <algorithm>

#include "ops/linear.h"

namespace calla {

enum class Product {
  kGemvF32,   // weights converted once per token, activations f32
  kDotsF32,   // weights expanded to f32 once for all tokens
  kGemvInt8,  // 4-bit weights with int8 activations, one row at a time
  kTileInt8,  // 4-bit weights expanded to a tile of bytes once for all tokens
};

// Products this narrow stay in f32: one output for each head of the 35B shape. They are a thousandth of the work, and
// what they feed is sensitive (decay, gates).
inline constexpr int kNarrow = 32;

// A product of `count` tokens with a matrix of `out` rows. 8-bit weights mark the router and the shared gate, where a
// wrong expert costs more than any rounding: they meet f32 activations too.
constexpr Product product_route(Linear::Format format, int out, int count) {
  const bool f32 = format != Linear::Format::kAffine4 || out <= kNarrow;
  if (f32) return count <= 2 ? Product::kGemvF32 : Product::kDotsF32;
  return count <= 2 ? Product::kGemvInt8 : Product::kTileInt8;
}
// The same without int8, for products that decide something.
constexpr Product exact_route(int count) {
  return count <= 2 ? Product::kGemvF32 : Product::kDotsF32;
}
constexpr bool takes_int8(Product p) {
  return p == Product::kGemvInt8 || p == Product::kTileInt8;
}

// How many int8 planes stand for the activations of a product. One plane errs by about 0.6 % of a product, enough to
// choose other experts now and then; the second holds what the first left over, and errs by 2e-5. All products
// need two to keep to the bar of docs/numerics.md, except the experts' gate and up: they do with one in passes that are
// bound by arithmetic, not by reading the weights.
inline constexpr int kFineRows = 64;
constexpr int gate_up_planes(int rows) {
  return rows <= kFineRows ? 2 : 1;
}

// Output rows of one task. A multiple of the tile's 16; 64 rows of 1 KiB amortise the hand-out and still feed 16
// threads.
inline constexpr int kRowBlock = 64;
// Tokens that one task takes at a time, so that their activations stay in L2 while the rows of the block pass.
inline constexpr int kTokenBlock = 64;

// Output rows of one task of the experts' down product: few tokens read long stretches of each expert with few calls,
// many tokens want many tasks.
inline constexpr int kLongStretches = 64;
constexpr int outer_block(int count) {
  return count <= kLongStretches ? kRowBlock : kRowBlock / 2;
}
// Rows of the router in one task.
inline constexpr int kRouterBlock = 16;
// Products in f32: so many expanded rows meet so many tokens at a time, four rows a call, so that both stay in L2.
inline constexpr int kDotBlock = 16;
inline constexpr int kDotRows = 4;
// Channels of one task of the convolution.
inline constexpr int kConvBlock = 256;

// Tokens whose normalised q and k a task of the delta rule holds at a time.
inline constexpr int kScanBlock = 64;
// Delta rule: from this many tokens on, 32 columns of the state are copied to a dense 16 KiB that stays in L1; below,
// it is used in place.
inline constexpr int kDenseStateFrom = 4;
constexpr bool dense_state(int count) {
  return count >= kDenseStateFrom;
}

// Attention: tokens of one run that share a task, so that their query rows (tokens × group) make up to four strips and
// the page is converted once for all of them.
inline constexpr int kTaskLanes = 128;
constexpr int query_tokens(int group, int count) {
  return std::clamp(kTaskLanes / group, 1, std::max(1, count));
}
// Query rows of a task are taken in strips of 32 when there are enough of them to pay for the padding and for the
// conversion of the page; else eight at a time.
inline constexpr int kStripsFrom = 25;
constexpr bool in_strips(int lanes) {
  return lanes >= kStripsFrom;
}
// Into how many parts the pages of one task are split, so that few long contexts still keep many threads busy. Depends
// on the batch only, not on the number of threads: results are the same for any.
inline constexpr int kAttendSlots = 64;  // partial results that scratch has room for
inline constexpr int kPagesPerPart = 2;  // at least
constexpr int page_parts(int units, int pages) {
  return std::max(1, std::min(kAttendSlots / std::max(1, units), pages / kPagesPerPart));
}

}  // namespace calla
