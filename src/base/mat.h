#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace calla {

// A view of a row-major matrix; `stride` counts elements from one row to the next. Owns nothing.
template <class T>
struct Mat {
  T* data = nullptr;
  int rows = 0;
  int cols = 0;
  std::ptrdiff_t stride = 0;

  Mat() = default;
  Mat(T* d, int r, int c) : data(d), rows(r), cols(c), stride(c) {}
  Mat(T* d, int r, int c, std::ptrdiff_t s) : data(d), rows(r), cols(c), stride(s) {}
  operator Mat<const T>() const requires(!std::is_const_v<T>) { return {data, rows, cols, stride}; }  // NOLINT

  T* row(int r) const {
    DCHECK(r >= 0 && r < rows, "row out of range");
    return data + r * stride;
  }
  std::span<T> operator[](int r) const { return {row(r), static_cast<size_t>(cols)}; }
};

}  // namespace calla
