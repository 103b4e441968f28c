#pragma once

// The state of one sequence in host memory: paged keys and values of the attention layers, and for each delta-net layer
// the recurrent matrices and the last three inputs of the convolution.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "base/result.h"
#include "formats/config.h"
#include "ops/dims.h"

namespace calla {

// What the state of one sequence looks like, from the config.
struct StateShape {
  explicit StateShape(const ModelConfig& c)
      : kv_heads(c.kv_heads),
        v_heads(c.v_heads),
        channels(c.conv_channels()),
        attention_layers(c.attention_layers()),
        delta_layers(c.delta_layers()),
        attends(c.attends) {
    int attention = 0, delta = 0;
    for (bool a : c.attends) slot.push_back(a ? attention++ : delta++);
  }
  int kv_heads, v_heads, channels, attention_layers, delta_layers;
  std::vector<bool> attends;  // layer → its kind
  std::vector<int> slot;      // layer → its index among the layers of its kind

  size_t recurrent_size() const { return size_t(delta_layers) * v_heads * kGdnDim * kGdnDim; }
  size_t window_size() const { return size_t(delta_layers) * (kConvTaps - 1) * channels; }
  size_t page_size() const;  // elements of one page, all layers
};

// Positions in one page. Small enough that a fork copies little, large enough that attention streams whole pages.
inline constexpr int kPage = 64;

inline size_t StateShape::page_size() const {
  return size_t(attention_layers) * 2 * kv_heads * kPage * kHeadDim;
}

// Numbers of pages with reference counts, so that forks share their common prefix. Not thread-safe: the runner that
// owns it is used by one thread.
class PageCounts {
 public:
  explicit PageCounts(int limit) : limit_(limit) {}

  // A page with count 1: one given back earlier, or the next number; -1 when `limit` pages are in use.
  int take() {
    if (free_.empty()) {
      if (static_cast<int>(counts_.size()) == limit_) return -1;
      free_.push_back(static_cast<int>(counts_.size()));
      counts_.push_back(0);
    }
    const int id = free_.back();
    free_.pop_back();
    counts_[id] = 1;
    return id;
  }
  void retain(int id) { ++counts_[id]; }
  void release(int id) {
    DCHECK(counts_[id] > 0, "page released twice");
    if (--counts_[id] == 0) free_.push_back(id);
  }
  bool shared(int id) const { return counts_[id] > 1; }
  int used() const { return static_cast<int>(counts_.size() - free_.size()); }
  int limit() const { return limit_; }

 private:
  int limit_;
  std::vector<int> counts_, free_;
};

// Pages in host memory, taken from the system one at a time and kept for reuse. What is in a page that nobody changes
// may be read from another thread meanwhile.
template <class Kv>
class PagePool : public PageCounts {
 public:
  PagePool(size_t page_size, int limit) : PageCounts(limit), page_size_(page_size) {
    pages_.reserve(limit);  // pages stay where they are, for readers on other threads
  }
  // As PageCounts::take; the content is undefined.
  int take() {
    const int id = PageCounts::take();
    if (id == static_cast<int>(pages_.size())) pages_.emplace_back(page_size_);
    return id;
  }
  Kv* data(int id) const { return pages_[id].data(); }
  size_t page_size() const { return page_size_; }

 private:
  size_t page_size_;
  std::vector<Buffer<Kv>> pages_;
};

// Kv: how keys and values are stored; Real: recurrent state and window. A page holds, per attention layer, keys then
// values, each [kv_heads][64][256].
template <class Kv, class Real>
class HostState {
 public:
  HostState(const StateShape& shape, PagePool<Kv>& pool)
      : shape_(&shape), pool_(&pool), recurrent_(shape.recurrent_size()), window_(shape.window_size()) {}
  HostState(HostState&& o) noexcept
      : shape_(o.shape_),
        pool_(o.pool_),
        pages_(std::exchange(o.pages_, {})),
        recurrent_(std::move(o.recurrent_)),
        window_(std::move(o.window_)) {}
  HostState& operator=(HostState&&) = delete;
  ~HostState() { drop_pages(0); }

  // A second state with the same content. The pages are shared until one side writes to them. (The host's memory was
  // planned: unlike a GPU's this does not fail.)
  Result<HostState> fork() const { return HostState(*this); }
  // Becomes what `o` is, another state.
  Result<void> assign(const HostState& o) {
    for (int page : o.pages_) pool_->retain(page);
    drop_pages(0);
    pages_ = o.pages_;
    std::copy_n(o.recurrent_.data(), recurrent_.size(), recurrent_.data());
    std::copy_n(o.window_.data(), window_.size(), window_.data());
    return {};
  }

  // The recurrent part alone, to come back to.
  struct Kept {
    Buffer<Real> recurrent, window;
  };
  Result<Kept> keep() const { return Kept{recurrent_.copy(), window_.copy()}; }
  void restore(const Kept& kept) {
    std::ranges::copy(kept.recurrent, recurrent_.begin());
    std::ranges::copy(kept.window, window_.begin());
  }
  // As at the start of a sequence; the pages stay.
  void clear() {
    std::ranges::fill(recurrent_, Real{0});
    std::ranges::fill(window_, Real{0});
  }

  // Makes positions [0, end) addressable and those from `begin` on writable (a shared page is copied). False: no page
  // is left; then nothing that was readable has changed.
  bool reserve(int begin, int end) {
    for (int p = begin / kPage; p < static_cast<int>(pages_.size()) && p * kPage < end; ++p) {
      if (!pool_->shared(pages_[p])) continue;
      const int copy = pool_->take();
      if (copy < 0) return false;
      std::memcpy(pool_->data(copy), pool_->data(pages_[p]), pool_->page_size() * sizeof(Kv));
      pool_->release(std::exchange(pages_[p], copy));
    }
    while (static_cast<int>(pages_.size()) * kPage < end) {
      const int page = pool_->take();
      if (page < 0) return false;
      pages_.push_back(page);
    }
    return true;
  }
  // Gives back the pages past position `end`.
  void truncate(int end) { drop_pages((end + kPage - 1) / kPage); }

  // Keys (which = 0) or values (1) of 64 positions starting at 64·page: [64][256] for one head of an attention layer.
  Kv* kv(int layer, int page, int which, int head) const {
    return pool_->data(pages_[page]) +
           ((size_t(shape_->slot[layer]) * 2 + which) * shape_->kv_heads + head) * kPage * kHeadDim;
  }
  // S of one value head of a delta-net layer: [128 key side][128 value side].
  Real* recurrent(int layer, int head) const {
    return recurrent_.data() + (size_t(shape_->slot[layer]) * shape_->v_heads + head) * kGdnDim * kGdnDim;
  }
  // Last three inputs of the convolution, oldest first: [3][channels].
  Real* window(int layer) const {
    return window_.data() + size_t(shape_->slot[layer]) * (kConvTaps - 1) * shape_->channels;
  }

  const StateShape& shape() const { return *shape_; }
  Buffer<Real>& recurrent_all() { return recurrent_; }
  const Buffer<Real>& recurrent_all() const { return recurrent_; }
  Buffer<Real>& window_all() { return window_; }
  const Buffer<Real>& window_all() const { return window_; }

 private:
  HostState(const HostState& o)
      : shape_(o.shape_), pool_(o.pool_), pages_(o.pages_), recurrent_(o.recurrent_.copy()), window_(o.window_.copy()) {
    for (int page : pages_) pool_->retain(page);
  }
  void drop_pages(int keep) {
    while (static_cast<int>(pages_.size()) > keep) {
      pool_->release(pages_.back());
      pages_.pop_back();
    }
  }
  const StateShape* shape_;
  PagePool<Kv>* pool_;
  std::vector<int> pages_;
  Buffer<Real> recurrent_, window_;
};

}  // namespace calla
