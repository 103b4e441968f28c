#include "engine/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/memory.h"
#include "base/progress.h"

namespace calla {
namespace {

using Bytes = std::span<const std::byte>;

struct Piece {
  const MappedFile* file;
  Bytes bytes;
};

// One huge page is filled by one thread.
constexpr uintptr_t kPieceBytes = 16 << 20;

const MappedFile& file_of(const Checkpoint& checkpoint, Bytes part) {
  const auto& files = checkpoint.files();
  const auto holder = std::ranges::find_if(files, [&](const SafetensorsFile& f) {
    const Bytes all = f.file().bytes();
    return part.data() >= all.data() && part.data() < all.data() + all.size();
  });
  CHECK(holder != files.end(), "weights that no file of the checkpoint holds");
  return holder->file();
}

// Cut at multiples of 16 MiB of the address.
std::vector<Piece> cut(const Checkpoint& checkpoint, std::span<const Bytes> parts) {
  std::vector<Piece> pieces;
  for (Bytes left : parts) {
    const MappedFile& file = file_of(checkpoint, left);
    while (!left.empty()) {
      const size_t room = kPieceBytes - reinterpret_cast<uintptr_t>(left.data()) % kPieceBytes;
      pieces.push_back({&file, left.first(std::min(room, left.size()))});
      left = left.subspan(pieces.back().bytes.size());
    }
  }
  return pieces;
}

// f(piece) for all pieces on all threads; the first error ends it.
template <class F>
Result<void> for_pieces(const std::vector<Piece>& pieces, Pool& pool, Progress* progress, const F& f) {
  std::atomic<bool> failed = false;
  std::atomic<uint64_t> done = 0;
  std::mutex mutex;
  Result<void> result;
  pool.run_on(static_cast<int>(pieces.size()), [&](int i, int thread) {
    if (failed.load(std::memory_order_relaxed)) return;
    if (auto one = f(pieces[i]); !one) {
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) result = std::move(one);
    }
    const uint64_t now = done += pieces[i].bytes.size();
    if (thread == 0 && progress != nullptr) progress->update(now);  // the calling thread
  });
  return result;
}

}  // namespace

Result<void> load_weights(const Checkpoint& checkpoint, std::span<const Bytes> parts, uint64_t others,
                          const LoadOptions& options, Pool& pool) {
  uint64_t bytes = 0;
  for (const Bytes part : parts) bytes += part.size();
  const uint64_t needed = bytes + others, available = available_memory();
  const std::vector<Piece> pieces = cut(checkpoint, parts);
  std::optional<Progress> progress;
  if (options.report) progress.emplace("reading the weights", bytes);
  Progress* const line = progress ? &*progress : nullptr;

  if (options.load == Load::kResident) {
    if (needed > available) {
      return fail(Error::Code::kMemory,
                  fmt::format("a copy of the weights in memory needs {}, {} with all else, and {} is available: use "
                              "--load auto, or free memory",
                              format_bytes(bytes), format_bytes(needed), format_bytes(available)));
    }
    for (const Bytes part : parts) CALLA_TRY(file_of(checkpoint, part).prepare_memory(part));
    CALLA_TRY(for_pieces(pieces, pool, line, [](const Piece& p) { return p.file->read_into_memory(p.bytes); }));
  } else if (options.load == Load::kAuto && needed <= available) {
    CALLA_TRY(for_pieces(pieces, pool, line, [](const Piece& p) { return p.file->populate(p.bytes); }));
  } else if (options.load == Load::kAuto && options.report) {
    fmt::print(stderr,
               "calla: the weights and all else take {}, and {} is available: the disk will be read again and again, "
               "which is slow\n",
               format_bytes(needed), format_bytes(available));
  }
  if (!options.lock) return {};
  for (const Bytes part : parts) CALLA_TRY(file_of(checkpoint, part).lock(part));
  return {};
}

}  // namespace calla
