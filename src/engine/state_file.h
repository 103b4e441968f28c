#pragma once

// A sequence on disk: a safetensors file with its tokens, the keys and values of its positions, the recurrent matrices,
// the convolution windows, and a fingerprint of the weights that made them.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <type_traits>
#include <vector>

#include "base/bf16.h"
#include "base/result.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "model/state.h"

namespace calla {

// What tells checkpoints apart: the SHA-256 of every tensor's name, dtype, shape and first bytes, 64 hexadecimal
// digits.
std::string fingerprint(const Checkpoint& checkpoint);

template <class T>
constexpr Dtype dtype_of() {
  if constexpr (std::is_same_v<T, bf16>) return Dtype::kBf16;
  if constexpr (std::is_same_v<T, float>) return Dtype::kF32;
  if constexpr (std::is_same_v<T, double>) return Dtype::kF64;
}

class StateFile {
 public:
  // Opens and checks everything that does not depend on the backend: the tokens and the fingerprint.
  static Result<StateFile> open(const std::filesystem::path& path, const Checkpoint& checkpoint);
  const std::vector<int32_t>& tokens() const { return tokens_; }

  // Copies the state in. REQUIRES: room for tokens().size() positions is reserved. An error leaves `state` partly
  // written.
  template <class Kv, class Real>
  Result<void> read(HostState<Kv, Real>& state) const {
    const StateShape& s = state.shape();
    const auto n = static_cast<int64_t>(tokens_.size());
    CALLA_ASSIGN(const auto recurrent,
                 tensor("recurrent", dtype_of<Real>(), {s.delta_layers, s.v_heads, kGdnDim, kGdnDim}));
    CALLA_ASSIGN(const auto window, tensor("window", dtype_of<Real>(), {s.delta_layers, kConvTaps - 1, s.channels}));
    CALLA_ASSIGN(const auto kv, tensor("kv", dtype_of<Kv>(), {s.attention_layers, 2, s.kv_heads, n, kHeadDim}));
    copy_bytes(recurrent, state.recurrent_all().data());
    copy_bytes(window, state.window_all().data());
    size_t offset = 0;
    for_each_block(state, n, [&](Kv* block, size_t bytes) {
      std::memcpy(block, kv.data() + offset, bytes);
      offset += bytes;
    });
    return {};
  }

  // Calls f(block, bytes) for each stretch of keys or values inside a page, in file order: layer, which, head,
  // position.
  template <class Kv, class Real, class F>
  static void for_each_block(const HostState<Kv, Real>& state, int64_t positions, const F& f) {
    const StateShape& s = state.shape();
    for (size_t layer = 0; layer < s.slot.size(); ++layer) {
      if (!s.attends[layer]) continue;
      for (int which = 0; which < 2; ++which) {
        for (int head = 0; head < s.kv_heads; ++head) {
          for (int64_t p = 0; p * kPage < positions; ++p) {
            const size_t rows = std::min<int64_t>(kPage, positions - p * kPage);
            f(state.kv(static_cast<int>(layer), static_cast<int>(p), which, head), rows * kHeadDim * sizeof(Kv));
          }
        }
      }
    }
  }

 private:
  // memcpy, which must not be handed a null pointer even for nothing.
  static void copy_bytes(std::span<const std::byte> from, void* to) {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
  Result<std::span<const std::byte>> tensor(std::string_view name, Dtype dtype,
                                            const std::vector<int64_t>& shape) const;
  SafetensorsFile file_;
  std::vector<int32_t> tokens_;
};

Result<void> write_state_tensors(const std::filesystem::path& path, const Checkpoint& checkpoint,
                                 std::span<const int32_t> tokens, std::vector<TensorData> tensors);

template <class Kv, class Real>
Result<void> write_state_file(const std::filesystem::path& path, const Checkpoint& checkpoint,
                              std::span<const int32_t> tokens, const HostState<Kv, Real>& state) {
  const StateShape& s = state.shape();
  const auto n = static_cast<int64_t>(tokens.size());
  Buffer<Kv> kv(size_t(s.attention_layers) * 2 * s.kv_heads * n * kHeadDim);
  size_t offset = 0;
  StateFile::for_each_block(state, n, [&](const Kv* block, size_t bytes) {
    std::memcpy(kv.data() + offset, block, bytes);
    offset += bytes / sizeof(Kv);
  });
  const auto bytes_of = [](const auto& buffer) { return std::as_bytes(std::span(buffer.data(), buffer.size())); };
  return write_state_tensors(
      path, checkpoint, tokens,
      {{"recurrent", dtype_of<Real>(), {s.delta_layers, s.v_heads, kGdnDim, kGdnDim}, bytes_of(state.recurrent_all())},
       {"window", dtype_of<Real>(), {s.delta_layers, kConvTaps - 1, s.channels}, bytes_of(state.window_all())},
       {"kv", dtype_of<Kv>(), {s.attention_layers, 2, s.kv_heads, n, kHeadDim}, bytes_of(kv)}});
}

}  // namespace calla
