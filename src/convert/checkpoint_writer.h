#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/pool.h"
#include "base/result.h"
#include "convert/parts.h"

namespace calla {

// Where packed rows of a matrix go: codes, then one scale and one bias per group of 64.
struct PackedRows {
  uint32_t* words;
  bf16* scales;
  bf16* biases;
};

// Makes the content of a checkpoint. Both functions are called from several threads at once, and must give the same
// bytes whenever they are asked again: an interrupted run is checked that way.
struct PartSource {
  // Rows [first, first + count) of matrix `expert` of a part.
  std::function<Result<void>(const Part& part, int expert, int first, int count, PackedRows out)> rows;
  // A vector, as f32; it is stored in part.dtype.
  std::function<std::vector<float>(const Part& part)> values;
  // Hints that these rows are wanted soon, or are finished with. May be empty.
  std::function<void(const Part& part, int expert, int first, int count, bool soon)> advise;
};

struct WriteOptions {
  bool force = false;                    // write into a folder that holds other files
  uint64_t shard_bytes = 5'000'000'000;  // no shard is larger, unless one part is
  int threads = 0;                       // 0: all
  std::string label = "writing";         // of the progress line
};

struct WriteSummary {
  uint64_t bytes = 0;       // of tensors in the checkpoint
  uint64_t kept_bytes = 0;  // of these, found finished from an earlier run
  int shards = 0;
};

// Writes a whole checkpoint folder in MLX's form: shards, mtp.safetensors if there are MTP parts, the index, the
// `extra` files (name, content), and config.json last, so that a folder without it is unfinished and does not open. An
// interrupted run is taken up again: a shard that is already there is kept if its header, the first and last rows of
// its matrices, and its vectors are what this run would write. A folder that holds anything else is refused without
// `force`.
Result<WriteSummary> write_checkpoint(const std::filesystem::path& out, const std::vector<Part>& body,
                                      const std::vector<Part>& mtp, const std::string& config,
                                      const std::vector<std::pair<std::string, std::string>>& extra,
                                      const PartSource& source, const WriteOptions& options);

}  // namespace calla
