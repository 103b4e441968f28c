#pragma once

#include <filesystem>

#include "base/result.h"
#include "convert/checkpoint_writer.h"

namespace calla {

struct QuantizeOptions {
  bool search = false;  // search_group instead of MLX's rule
  bool force = false;
  int threads = 0;
  uint64_t shard_bytes = WriteOptions{}.shard_bytes;
};

struct QuantizeSummary {
  WriteSummary written;
  uint64_t source_bytes = 0;
  bool mtp = false;
  bool tokenizer = false;  // tokenizer.json was there to copy
};

// Turns a bf16 checkpoint into MLX's 4-bit form, in a folder that mlx-lm and Calla load as it is: docs/formats.md.
// Reads the source once and keeps little of it in memory.
Result<QuantizeSummary> quantize_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to,
                                            const QuantizeOptions& options);

}  // namespace calla
