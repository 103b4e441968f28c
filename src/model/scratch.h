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
  HostScratch(const ModelConfig& c, int max_rows, int max_logits) : max_rows_(max_rows), max_logits_(max_logits) {
    add(x, c.hidden, max_rows);
    add(h, c.hidden, max_rows);
    add(y, c.hidden, max_rows);
    add(qg, c.heads * 2 * kHeadDim, max_rows);
    add(k, c.kv_heads * kHeadDim, max_rows);
    add(v, c.kv_heads * kHeadDim, max_rows);
    add(qkv, c.conv_channels(), max_rows);
    add(z, c.v_heads * kGdnDim, max_rows);
    add(a, c.v_heads, max_rows);
    add(b, c.v_heads, max_rows);
    add(o, std::max(c.heads * kHeadDim, c.v_heads * kGdnDim), max_rows);
    add(last, c.hidden, max_logits);
    add(logits, c.vocab, max_logits);
    attention_o_ = c.heads * kHeadDim;
    delta_o_ = c.v_heads * kGdnDim;
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
  void add(Mat<Real>& m, int cols, int rows) {
    buffers_.emplace_back(size_t(cols) * rows);
    m = {buffers_.back().data(), rows, cols};
  }
  int max_rows_, max_logits_, attention_o_ = 0, delta_o_ = 0;
  Mat<Real> o;
  std::vector<Buffer<Real>> buffers_;
};

}  // namespace calla
