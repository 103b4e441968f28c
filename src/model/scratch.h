#pragma once

#include <algorithm>
#include <vector>

#include "base/buffer.h"
#include "base/mat.h"
#include "formats/config.h"
#include "ops/dims.h"

namespace calla {

// The activations of one pass in host memory, allocated once for at most `max_rows` rows and `max_logits` rows of
// logits.
template <class Real>
class HostScratch {
 public:
  HostScratch(const ModelConfig& c, int max_rows, int max_logits)
      : max_rows_(max_rows), max_logits_(max_logits), attention_o_(c.heads * kHeadDim), delta_o_(c.v_heads * kGdnDim) {
    for_matrices(c, max_rows, max_logits, [&](Mat<Real> HostScratch::*m, int cols, int rows) {
      buffers_.emplace_back(size_t(cols) * rows);
      this->*m = {buffers_.back().data(), rows, cols};
    });
  }
  // What the constructor allocates.
  static size_t bytes(const ModelConfig& c, int max_rows, int max_logits) {
    size_t elements = 0;
    for_matrices(c, max_rows, max_logits,
                 [&](Mat<Real> HostScratch::*, int cols, int rows) { elements += size_t(cols) * rows; });
    return sizeof(Real) * elements;
  }
  HostScratch(const HostScratch&) = delete;
  HostScratch& operator=(const HostScratch&) = delete;

  // Sets the rows of every matrix for a pass; allocates nothing.
  void resize(int rows, int wanted) {
    for (Mat<Real>* m : {&x, &h, &y, &qg, &k, &v, &qkv, &z, &a, &b, &o}) m->rows = rows;
    last.rows = logits.rows = wanted;
    attended = {o.data, rows, attention_o_};
    recalled = {o.data, rows, delta_o_};
  }
  int max_rows() const { return max_rows_; }
  int max_logits() const { return max_logits_; }

  Mat<Real> x, h, y;             // residual stream, its norm, a block's output: [m, hidden]
  Mat<Real> qg, k, v;            // attention
  Mat<Real> qkv, z, a, b;        // delta net
  Mat<Real> attended, recalled;  // what attention and the delta rule give; views of one buffer
  Mat<Real> last, logits;        // rows that are asked for: [wanted, hidden], [wanted, vocab]

 private:
  // f(matrix, columns, rows) for every matrix that has memory of its own.
  template <class F>
  static void for_matrices(const ModelConfig& c, int rows, int logits, const F& f) {
    for (const auto m : {&HostScratch::x, &HostScratch::h, &HostScratch::y}) f(m, c.hidden, rows);
    f(&HostScratch::qg, c.heads * 2 * kHeadDim, rows);
    f(&HostScratch::k, c.kv_heads * kHeadDim, rows);
    f(&HostScratch::v, c.kv_heads * kHeadDim, rows);
    f(&HostScratch::qkv, c.conv_channels(), rows);
    f(&HostScratch::z, c.v_heads * kGdnDim, rows);
    f(&HostScratch::a, c.v_heads, rows);
    f(&HostScratch::b, c.v_heads, rows);
    f(&HostScratch::o, std::max(c.heads * kHeadDim, c.v_heads * kGdnDim), rows);
    f(&HostScratch::last, c.hidden, logits);
    f(&HostScratch::logits, c.vocab, logits);
  }
  int max_rows_, max_logits_, attention_o_, delta_o_;
  Mat<Real> o;
  std::vector<Buffer<Real>> buffers_;
};

}  // namespace calla
