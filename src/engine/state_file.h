#pragma once

// A sequence on disk: a safetensors file with its tokens, the keys and values of its positions, the recurrent matrices,
// the convolution windows, a fingerprint of the weights that made them, and a checksum of all that.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <type_traits>
#include <vector>

#include "base/bf16.h"
#include "base/checksum.h"
#include "base/result.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
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
  // Opens and checks what does not depend on the backend, and is cheap: the tokens' range and the fingerprint.
  static Result<StateFile> open(const std::filesystem::path& path, const Checkpoint& checkpoint);
  const std::vector<int32_t>& tokens() const { return tokens_; }

  // Compares the checksum: reads the whole file.
  Result<void> verify() const;

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
  Result<std::span<const std::byte>> bytes_of(std::string_view name) const;
  SafetensorsFile file_;
  std::vector<int32_t> tokens_;
};

// Writes the tensors of a state file in order: recurrent, window, kv, each from first to last byte.
class StateFileWriter {
 public:
  static Result<StateFileWriter> create(const std::filesystem::path& path, std::vector<TensorSpec> state,
                                        const Checkpoint& checkpoint, std::span<const int32_t> tokens);
  // The next bytes of a tensor. REQUIRES: a multiple of 32 of them.
  Result<void> write(size_t tensor, std::span<const std::byte> data);
  Result<void> commit(std::span<const int32_t> tokens);

 private:
  SafetensorsWriter writer_;
  Checksum sum_;
  size_t tensor_ = 0;
  uint64_t offset_ = 0;
};

template <class Kv, class Real>
Result<void> write_state_file(const std::filesystem::path& path, const Checkpoint& checkpoint,
                              std::span<const int32_t> tokens, const HostState<Kv, Real>& state) {
  const StateShape& s = state.shape();
  const auto n = static_cast<int64_t>(tokens.size());
  CALLA_ASSIGN(StateFileWriter writer,
               StateFileWriter::create(path,
                                       {{"recurrent", dtype_of<Real>(), {s.delta_layers, s.v_heads, kGdnDim, kGdnDim}},
                                        {"window", dtype_of<Real>(), {s.delta_layers, kConvTaps - 1, s.channels}},
                                        {"kv", dtype_of<Kv>(), {s.attention_layers, 2, s.kv_heads, n, kHeadDim}}},
                                       checkpoint, tokens));
  const auto bytes_of = [](const auto& buffer) { return std::as_bytes(std::span(buffer.data(), buffer.size())); };
  CALLA_TRY(writer.write(0, bytes_of(state.recurrent_all())));
  CALLA_TRY(writer.write(1, bytes_of(state.window_all())));
  Result<void> result;
  StateFile::for_each_block(state, n, [&](const Kv* block, size_t bytes) {
    if (result) result = writer.write(2, std::as_bytes(std::span(block, bytes / sizeof(Kv))));
  });
  CALLA_TRY(result);
  return writer.commit(tokens);
}

}  // namespace calla
