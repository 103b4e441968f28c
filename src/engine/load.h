#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/pool.h"
#include "base/result.h"
#include "formats/checkpoint.h"

namespace calla {

// Where the weights are while the model runs. docs/performance.md has what was measured.
enum class Load : uint8_t {
  kAuto,      // kMap, with every page present before the first token if all of them fit in memory
  kMap,       // in the page cache; what is not there yet is read from the disk when it is needed
  kResident,  // a copy in huge anonymous pages, which the system cannot drop: for machines that have memory for it
};

struct LoadOptions {
  Load load = Load::kAuto;
  bool lock = false;   // mlock: what is in memory stays there, whatever else runs
  bool report = true;  // progress and a warning on standard error
};

// Brings `parts` of the checkpoint's files where `options` wants them: read by all threads of the pool, 16 MiB at a
// time. `others`: bytes that the rest of the engine will allocate. Errors: kMemory where a copy or a lock does not fit,
// kIo where a file became shorter or cannot be read; then the checkpoint may not be used any more.
Result<void> load_weights(const Checkpoint& checkpoint, std::span<const std::span<const std::byte>> parts,
                          uint64_t others, const LoadOptions& options, Pool& pool);

}  // namespace calla
