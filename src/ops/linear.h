#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/bf16.h"
#include "quant/affine.h"

namespace calla {

// A weight matrix where it lies in the checkpoint: [out, in] row-major, y = W·x. A view; the checkpoint owns the bytes.
// safetensors promises no alignment: read through load(), or with unaligned vector loads.
struct Linear {
  enum class Format : uint8_t { kBf16, kAffine4, kAffine8 };
  Format format = Format::kBf16;
  int out = 0;
  int in = 0;                         // a multiple of 64
  const std::byte* weight = nullptr;  // bf16 [out, in], or codes: u32 [out, in·bits/32]
  const std::byte* scales = nullptr;  // affine: bf16 [out, in/64]
  const std::byte* biases = nullptr;  // affine: bf16 [out, in/64]

  size_t row_bytes() const {
    return format == Format::kBf16 ? size_t{2} * in : format == Format::kAffine8 ? size_t{1} * in : size_t(in) / 2;
  }
  int groups() const { return in / kGroup; }
  // Bytes that a product with one vector reads.
  size_t bytes() const { return out * (row_bytes() + (format == Format::kBf16 ? 0 : size_t{4} * groups())); }
  // Multiplications of a product with one vector.
  uint64_t macs() const { return uint64_t(out) * in; }
  // Rows [first, first+count) as a matrix of their own.
  Linear rows(int first, int count) const {
    Linear part = *this;
    part.out = count;
    part.weight += first * row_bytes();
    if (format != Format::kBf16) {
      part.scales += size_t{2} * first * groups();
      part.biases += size_t{2} * first * groups();
    }
    return part;
  }
};

inline float load_bf16(const std::byte* p, size_t index) {
  bf16 v;
  std::memcpy(&v, p + 2 * index, 2);
  return to_f32(v);
}

// Row `r` of W as real numbers: the meaning of every format. T is float or double; the product scale·code and the sum
// with the bias are exact in double.
template <class T>
void dequantize_row(const Linear& w, int r, std::span<T> row) {
  if (w.format == Linear::Format::kBf16) {
    for (int c = 0; c < w.in; ++c) row[c] = load_bf16(w.weight, size_t(r) * w.in + c);
    return;
  }
  const auto* codes = reinterpret_cast<const uint8_t*>(w.weight + r * w.row_bytes());
  const bool bytes = w.format == Linear::Format::kAffine8;
  for (int g = 0; g < w.groups(); ++g) {
    const size_t at = size_t(r) * w.groups() + g;
    const T scale = load_bf16(w.scales, at), bias = load_bf16(w.biases, at);
    for (int c = g * kGroup; c < (g + 1) * kGroup; ++c) {
      const int code = bytes ? codes[c] : (codes[c / 2] >> (c % 2 * 4)) & 15;
      row[c] = scale * static_cast<T>(code) + bias;
    }
  }
}

// A SwiGLU block: down · (silu(gate·x) ⊙ up·x).
struct Mlp {
  Linear gate, up, down;
  size_t bytes() const { return gate.bytes() + up.bytes() + down.bytes(); }
  uint64_t macs() const { return gate.macs() + up.macs() + down.macs(); }
};

// Mixture of experts with one shared expert behind a sigmoid gate.
struct Moe {
  Linear router;             // [experts, hidden]
  std::vector<Mlp> experts;  // routed, `top_k` of them per token
  Mlp shared;
  Linear shared_gate;  // [1, hidden]
  int top_k = 0;
};

}  // namespace calla
