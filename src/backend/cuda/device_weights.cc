#include "backend/cuda/device_weights.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "backend/cuda/rows.h"
#include "backend/cuda/tiles.h"
#include "base/check.h"
#include "base/progress.h"

namespace calla::cuda {
namespace {

using Format = DeviceLinear::Format;

// Some rows of a matrix on their way to where the kernels want them.
struct Piece {
  Linear rows;
  bool tiled;
  int first = 0, step = 1;  // tiled: where its row tiles go (tile_matrix)
  std::byte* weight = nullptr;
  uint32_t* scales = nullptr;
  size_t scale_bytes() const { return size_t{2} * rows.out * rows.groups(); }
  size_t bytes() const { return rows.out * rows.row_bytes() + 2 * scale_bytes(); }
};

constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kBatchBytes = 32 << 20;

}  // namespace

// One walk over the weights gives every matrix its place; what has to be copied there is left in `pieces`.
class Layout {
 public:
  Layout(const Weights& w, std::byte* base, DeviceWeights& out) : arena_(base), out_(out) {
    rows(w.tokens);
    for (const Layer& layer : w.layers) {
      vec(layer.norm1);
      vec(layer.norm2);
      if (layer.attends) {
        for (const Linear* m : {&layer.attn.q, &layer.attn.k, &layer.attn.v, &layer.attn.o}) tiles(*m);
        vec(layer.attn.q_norm);
        vec(layer.attn.k_norm);
      } else {
        for (const Linear* m : {&layer.gdn.qkv, &layer.gdn.z, &layer.gdn.a, &layer.gdn.b, &layer.gdn.out}) tiles(*m);
        for (const auto* v : {&layer.gdn.conv, &layer.gdn.A_log, &layer.gdn.dt_bias, &layer.gdn.norm}) vec(*v);
      }
      moe(layer.moe);
    }
    vec(w.norm);
    tiles(w.head);
  }

  size_t bytes() const { return arena_.used(); }
  std::vector<Piece> pieces;
  std::vector<std::span<const float>> vectors;

 private:
  static Format format_of(const Linear& w) {
    return w.format == Linear::Format::kBf16      ? Format::kBf16
           : w.format == Linear::Format::kAffine8 ? Format::kAffine8
                                                  : Format::kAffine4;
  }
  void vec(const std::vector<float>& v) {
    out_.vectors_[v.data()] = arena_.take<float>(v.size());
    vectors.push_back(v);
  }
  // As in the checkpoint, besides the pairs of scales.
  DeviceLinear rows(const Linear& w) {
    DeviceLinear d{format_of(w), w.out, w.in, arena_.take<std::byte>(w.out * w.row_bytes()),
                   arena_.take<uint32_t>(size_t(w.out) * w.groups())};
    cut(w, d, false, 0, 1);
    return out_.linears_[&w] = d;
  }
  // `count` matrices of the shape of w, tiled, one after another.
  DeviceLinear tile_room(const Linear& w, int out, int count) {
    const TileSizes size = tile_sizes(out, w.in);
    return {Format::kAffine4, out, w.in, arena_.take<std::byte>(size.code_bytes * count),
            arena_.take<uint32_t>(size.scale_bytes / sizeof(uint32_t) * count)};
  }
  void tiles(const Linear& w) {
    const DeviceLinear d = tile_room(w, w.out, 1);
    cut(w, d, true, 0, 1);
    out_.linears_[&w] = d;
  }
  DeviceExperts experts(std::span<const Mlp> mlps) {
    const Mlp& one = mlps[0];
    const int count = static_cast<int>(mlps.size()), width = one.gate.out;
    DeviceExperts e{count, width, one.gate.in, tile_room(one.gate, 2 * width, count),
                    tile_room(one.down, one.down.out, count)};
    const TileSizes gate_up = tile_sizes(2 * width, one.gate.in), down = tile_sizes(one.down.out, width);
    e.gate_up_codes = gate_up.code_bytes;
    e.gate_up_scales = gate_up.scale_bytes;
    e.down_codes = down.code_bytes;
    e.down_scales = down.scale_bytes;
    for (int i = 0; i < count; ++i) {
      const auto at = [&](const DeviceLinear& first, size_t codes, size_t scales) {
        DeviceLinear d = first;
        if (d.weight != nullptr) {
          d.weight = static_cast<const std::byte*>(d.weight) + i * codes;
          d.scales += i * scales / sizeof(uint32_t);
        }
        return d;
      };
      cut(mlps[i].gate, at(e.gate_up, e.gate_up_codes, e.gate_up_scales), true, 0, 2);
      cut(mlps[i].up, at(e.gate_up, e.gate_up_codes, e.gate_up_scales), true, 1, 2);
      cut(mlps[i].down, at(e.down, e.down_codes, e.down_scales), true, 0, 1);
    }
    return e;
  }
  void moe(const Moe& w) {
    out_.moes_[&w] = {rows(w.router), rows(w.shared_gate), experts(w.experts), experts({&w.shared, 1}), w.top_k};
  }
  // Whole row tiles, of about kPieceBytes.
  void cut(const Linear& w, const DeviceLinear& d, bool tiled, int first, int step) {
    const int per_tile = static_cast<int>(kTileRows * (w.row_bytes() + size_t{4} * w.groups()));
    const int count = std::max<int>(1, kPieceBytes / per_tile) * kTileRows;
    auto* const weight = static_cast<std::byte*>(const_cast<void*>(d.weight));
    auto* const scales = const_cast<uint32_t*>(d.scales);
    for (int row = 0; row < w.out; row += count) {
      const Linear part = w.rows(row, std::min(count, w.out - row));
      if (tiled) {
        pieces.push_back({part, true, first + row / kTileRows * step, step, weight, scales});
      } else {
        pieces.push_back({part, false, 0, 1, weight == nullptr ? nullptr : weight + row * w.row_bytes(),
                          scales == nullptr ? nullptr : scales + size_t(row) * w.groups()});
      }
    }
  }

  Arena arena_;
  DeviceWeights& out_;
};

namespace {

// Batches of pieces: gathered by the pool into pinned memory, copied as one, put in order by kernels. Two batches are
// under way at a time.
class Uploader {
 public:
  static Result<Uploader> make() {
    Uploader u;
    for (Slot& slot : u.slots_) {
      CALLA_ASSIGN(slot.host, PinnedMemory::allocate(kBatchBytes));
      CALLA_ASSIGN(slot.device, DeviceMemory::allocate(kBatchBytes));
    }
    return u;
  }

  Result<void> copy(std::span<const Piece> pieces, Pool& pool, Progress* progress) {
    cudaEvent_t done[kSlots];
    for (cudaEvent_t& e : done) {
      if (cudaEventCreateWithFlags(&e, cudaEventDisableTiming) != cudaSuccess) return failed();
    }
    uint64_t bytes = 0;
    Result<void> result;
    for (size_t batch = 0; result && !pieces.empty(); ++batch) {
      Slot& slot = slots_[batch % kSlots];
      if (cudaEventSynchronize(done[batch % kSlots]) != cudaSuccess) result = failed();
      offsets_.clear();
      size_t used = 0;
      for (const Piece& p : pieces) {
        const size_t next = (used + p.bytes() + 255) / 256 * 256;
        if (next > kBatchBytes) break;
        offsets_.push_back(used);
        used = next;
      }
      const auto now = pieces.first(offsets_.size());
      pieces = pieces.subspan(offsets_.size());
      pool.run(static_cast<int>(now.size()), [&](int i) { gather(now[i], slot.host.data() + offsets_[i]); });
      cudaMemcpyAsync(slot.device.data(), slot.host.data(), used, cudaMemcpyHostToDevice, nullptr);
      for (size_t i = 0; i < now.size(); ++i) place(now[i], slot.device.data() + offsets_[i]);
      if (cudaEventRecord(done[batch % kSlots]) != cudaSuccess) result = failed();
      bytes += used;
      if (progress != nullptr) progress->update(bytes);
    }
    if (cudaStreamSynchronize(nullptr) != cudaSuccess) result = failed();
    for (cudaEvent_t e : done) cudaEventDestroy(e);
    return result;
  }

 private:
  static constexpr int kSlots = 3;
  struct Slot {
    PinnedMemory host;
    DeviceMemory device;
  };
  static tl::unexpected<Error> failed() { return tl::unexpected<Error>(device_error("copying the weights")); }

  static void gather(const Piece& p, std::byte* to) {
    const size_t codes = p.rows.out * p.rows.row_bytes();
    std::memcpy(to, p.rows.weight, codes);
    std::memcpy(to + codes, p.rows.scales, p.scale_bytes());
    std::memcpy(to + codes + p.scale_bytes(), p.rows.biases, p.scale_bytes());
  }
  static void place(const Piece& p, const std::byte* from) {
    const size_t codes = p.rows.out * p.rows.row_bytes();
    const std::byte *scales = from + codes, *biases = scales + p.scale_bytes();
    if (p.tiled) {
      tile_matrix(nullptr, p.rows.out, p.rows.in, from, scales, biases, p.first, p.step, p.weight, p.scales);
    } else {
      cudaMemcpyAsync(p.weight, from, codes, cudaMemcpyDeviceToDevice, nullptr);
      pair_scales(nullptr, size_t(p.rows.out) * p.rows.groups(), scales, biases, p.scales);
    }
  }

  std::array<Slot, kSlots> slots_;
  std::vector<size_t> offsets_;
};

}  // namespace

Result<void> DeviceWeights::check(const Weights& weights) {
  DeviceWeights nowhere;
  const auto is = [](const Linear& w, Linear::Format format) { return w.format == format; };
  bool fits = is(weights.tokens, Linear::Format::kAffine4);
  for (const Layer& layer : weights.layers) {
    fits =
        fits && is(layer.moe.router, Linear::Format::kAffine8) && is(layer.moe.shared_gate, Linear::Format::kAffine8);
  }
  for (const Piece& p : Layout(weights, nullptr, nowhere).pieces) {
    fits = fits && (!p.tiled || is(p.rows, Linear::Format::kAffine4));
  }
  if (fits) return {};
  return fail(Error::Code::kUnsupported,
              "the GPU's kernels read matrices of 4 bits, router and shared gate of 8: convert the checkpoint with "
              "`calla quantize`, or use --device cpu");
}

uint64_t DeviceWeights::bytes(const Weights& weights) {
  DeviceWeights nowhere;
  return Layout(weights, nullptr, nowhere).bytes();
}

Result<DeviceWeights> DeviceWeights::upload(const Weights& weights, Pool& pool, bool report) {
  CALLA_TRY(check(weights));
  DeviceWeights out;
  CALLA_ASSIGN(out.memory_, DeviceMemory::allocate(bytes(weights)));
  Layout layout(weights, out.memory_.data(), out);
  CALLA_ASSIGN(Uploader uploader, Uploader::make());
  std::optional<Progress> progress;
  if (report) progress.emplace("copying the weights to the GPU", layout.bytes());
  CALLA_TRY(uploader.copy(layout.pieces, pool, progress ? &*progress : nullptr));
  for (const auto v : layout.vectors) {
    if (cudaMemcpy(const_cast<float*>(out.of(v)), v.data(), v.size_bytes(), cudaMemcpyHostToDevice) != cudaSuccess) {
      return tl::unexpected<Error>(device_error("copying the weights"));
    }
  }
  return out;
}

const DeviceLinear& DeviceWeights::of(const Linear& w) const {
  const auto it = linears_.find(&w);
  CHECK(it != linears_.end(), "a matrix that was not copied to the GPU");
  return it->second;
}
const float* DeviceWeights::of(std::span<const float> v) const {
  const auto it = vectors_.find(v.data());
  CHECK(it != vectors_.end(), "a vector that was not copied to the GPU");
  return it->second;
}
const DeviceMoe& DeviceWeights::of(const Moe& w) const {
  const auto it = moes_.find(&w);
  CHECK(it != moes_.end(), "experts that were not copied to the GPU");
  return it->second;
}

}  // namespace calla::cuda
