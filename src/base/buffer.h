#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#include "base/memory.h"

namespace calla {

// An owned array of trivial elements, aligned to a cache line and zeroed. Allocation failure throws std::bad_alloc:
// sizes are planned and checked before anything of this kind is made.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr std::size_t kAlign = 64;
  Buffer() = default;
  explicit Buffer(std::size_t size) : Buffer(size, nullptr) {}
  Buffer copy() const { return Buffer(size_, data()); }
  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  T& operator[](std::size_t i) const { return data_.get()[i]; }
  T* begin() const { return data(); }
  T* end() const { return data() + size_; }

 private:
  Buffer(std::size_t size, const T* from) : size_(size) {
    if (size == 0) return;
    const std::size_t rounded = (bytes() + kAlign - 1) / kAlign * kAlign;
    void* p = std::aligned_alloc(kAlign, rounded);
    if (p == nullptr) throw std::bad_alloc();
    if (rounded >= kLarge) take_pages(p, rounded);
    from == nullptr ? __builtin_memset(p, 0, rounded) : __builtin_memcpy(p, from, bytes());
    data_.reset(static_cast<T*>(p));
  }
  static constexpr std::size_t kLarge = std::size_t{1} << 20;
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  std::size_t size_ = 0;
};

}  // namespace calla
