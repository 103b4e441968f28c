#include "convert/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "base/check.h"
#include "base/file.h"
#include "base/progress.h"
#include "formats/safetensors_writer.h"

namespace calla {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kMtp = "mtp.safetensors";
constexpr const char* kMarker = ".calla-unfinished";  // in a folder that a run has begun and not finished
constexpr int64_t kChunkValues = 1 << 20;             // of one matrix, quantised by one thread at a time
const std::map<std::string, std::string> kMetadata{{"format", "mlx"}};

// A file of the checkpoint and the parts in it.
struct Shard {
  std::string name;
  std::vector<Part> parts;
  bool kept = false;
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Part& part : parts) sum += part.bytes();
    return sum;
  }
  std::vector<TensorSpec> tensors() const {
    std::vector<TensorSpec> all;
    for (const Part& part : parts) {
      for (TensorSpec& tensor : part.tensors()) all.push_back(std::move(tensor));
    }
    return all;
  }
};

std::vector<Shard> plan_shards(const std::vector<Part>& body, const std::vector<Part>& mtp, uint64_t limit) {
  std::vector<Shard> shards(1);
  uint64_t size = 0;
  for (const Part& part : body) {
    if (size > 0 && size + part.bytes() > limit) {
      shards.emplace_back();
      size = 0;
    }
    shards.back().parts.push_back(part);
    size += part.bytes();
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].name = shards.size() == 1 ? "model.safetensors"
                                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  if (!mtp.empty()) shards.push_back({kMtp, mtp});
  return shards;
}

// Some rows of one matrix: what a thread makes in one go.
struct Chunk {
  const Part* part;
  int expert, first, count;
};

std::vector<Chunk> chunks_of(const Part& part) {
  std::vector<Chunk> chunks;
  const int step = static_cast<int>(std::max<int64_t>(1, kChunkValues / part.in()));
  for (int e = 0; e < static_cast<int>(part.matrices.size()); ++e) {
    for (int r = 0; r < part.out(); r += step) chunks.push_back({&part, e, r, std::min(step, part.out() - r)});
  }
  return chunks;
}

// Room for the packed rows of one chunk.
class Packed {
 public:
  PackedRows rows(const Chunk& chunk) {
    const size_t groups = chunk.count * chunk.part->groups();
    words_.resize(chunk.count * chunk.part->row_bytes() / sizeof(uint32_t));
    scales_.resize(groups);
    biases_.resize(groups);
    return {words_.data(), scales_.data(), biases_.data()};
  }
  // The bytes of tensor 0, 1 or 2 of the part.
  std::span<const std::byte> bytes(int tensor) const {
    return tensor == 0 ? std::as_bytes(std::span(words_)) : std::as_bytes(std::span(tensor == 1 ? scales_ : biases_));
  }
  // Where they start in that tensor.
  static uint64_t offset(const Chunk& chunk, int tensor) {
    const uint64_t row = static_cast<uint64_t>(chunk.expert) * chunk.part->out() + chunk.first;
    return row * (tensor == 0 ? chunk.part->row_bytes() : sizeof(bf16) * chunk.part->groups());
  }

 private:
  std::vector<uint32_t> words_;
  std::vector<bf16> scales_, biases_;
};

std::vector<std::byte> stored(const Part& part, const std::vector<float>& values) {
  CHECK(values.size() == part.values_count(), "a vector of another length");
  std::vector<std::byte> bytes(values.size() * dtype_bytes(part.dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const bf16 narrow = to_bf16(values[i]);
    if (part.dtype == Dtype::kBf16) {
      std::memcpy(&bytes[2 * i], &narrow, 2);
    } else {
      std::memcpy(&bytes[4 * i], &values[i], 4);
    }
  }
  return bytes;
}

// Whether a finished file is the one that this run would write: the same header, and the same bytes where we look.
bool is_what_we_would_write(const fs::path& path, const Shard& shard, const PartSource& source) {
  const auto file = SafetensorsFile::open(path);
  if (!file) return false;
  const std::string header = safetensors_header(shard.tensors(), kMetadata);
  const auto bytes = file->file().bytes();
  if (bytes.size() != header.size() + shard.bytes() || std::memcmp(bytes.data(), header.data(), header.size()) != 0)
    return false;
  const auto same = [&](const std::string& name, uint64_t offset, std::span<const std::byte> want) {
    return std::memcmp(file->tensors().find(name)->second.data.data() + offset, want.data(), want.size()) == 0;
  };
  Packed packed;
  for (const Part& part : shard.parts) {
    if (part.kind != Part::Kind::kMatrix) {
      if (!same(part.name, 0, stored(part, source.values(part)))) return false;
      continue;
    }
    const auto chunks = chunks_of(part);
    for (const Chunk& whole : {chunks.front(), chunks.back()}) {
      const Chunk chunk{whole.part, whole.expert, whole.first + whole.count - 1, 1};
      if (!source.rows(part, chunk.expert, chunk.first, chunk.count, packed.rows(chunk))) return false;
      for (int t = 0; t < 3; ++t) {
        if (!same(part.tensors()[t].name, Packed::offset(chunk, t), packed.bytes(t))) return false;
      }
    }
  }
  return true;
}

class ShardWriter {
 public:
  ShardWriter(const PartSource& source, Pool& pool, Progress& progress)
      : source_(source), pool_(pool), progress_(progress), packed_(pool.threads()) {}

  Result<void> write(const fs::path& path, const Shard& shard) {
    CALLA_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::create(path, shard.tensors(), kMetadata));
    size_t tensor = 0;
    for (const Part& part : shard.parts) {
      if (part.kind == Part::Kind::kMatrix) {
        CALLA_TRY(write_matrix(writer, tensor, part));
        tensor += 3;
      } else {
        CALLA_TRY(writer.write(tensor, 0, stored(part, source_.values(part))));
        tensor += 1;
      }
      progress_.advance(part.bytes());
    }
    return writer.commit();
  }

 private:
  Result<void> write_matrix(const SafetensorsWriter& writer, size_t tensor, const Part& part) {
    const auto chunks = chunks_of(part);
    const size_t batch = 8 * static_cast<size_t>(pool_.threads());
    const auto advise = [&](size_t first, bool soon) {
      if (!source_.advise) return;
      for (size_t i = first; i < std::min(first + batch, chunks.size()); ++i) {
        source_.advise(part, chunks[i].expert, chunks[i].first, chunks[i].count, soon);
      }
    };
    advise(0, true);
    for (size_t first = 0; first < chunks.size(); first += batch) {
      advise(first + batch, true);
      const size_t count = std::min(batch, chunks.size() - first);
      std::vector<Result<void>> results(count);
      pool_.run_on(static_cast<int>(count), [&](int i, int thread) {
        const Chunk& chunk = chunks[first + i];
        Packed& packed = packed_[thread];
        results[i] = source_.rows(part, chunk.expert, chunk.first, chunk.count, packed.rows(chunk));
        for (int t = 0; t < 3 && results[i]; ++t)
          results[i] = writer.write(tensor + t, Packed::offset(chunk, t), packed.bytes(t));
      });
      for (const auto& result : results) CALLA_TRY(result);
      advise(first, false);
    }
    return {};
  }

  const PartSource& source_;
  Pool& pool_;
  Progress& progress_;
  std::vector<Packed> packed_;  // one per thread
};

std::string index_json(const std::vector<Shard>& shards) {
  nlohmann::json map = nlohmann::json::object();
  uint64_t bytes = 0, values = 0;
  for (const Shard& shard : shards) {
    if (shard.name == kMtp) continue;
    for (const Part& part : shard.parts) {
      values += part.values_count();
      bytes += part.bytes();
      for (const TensorSpec& tensor : part.tensors()) map[tensor.name] = shard.name;
    }
  }
  const nlohmann::json metadata = {{"total_size", bytes}, {"total_parameters", values}};
  return nlohmann::json{{"metadata", metadata}, {"weight_map", std::move(map)}}.dump(4) + "\n";
}

tl::unexpected<Error> io_error(const fs::path& path, std::string_view what, const std::error_code& error) {
  return fail(Error::Code::kIo, fmt::format("cannot {} {}: {}", what, path.string(), error.message()));
}

// Makes the folder, or finds that it is ours to go on with, and takes away what would make it look finished.
Result<void> prepare_folder(const fs::path& out, bool force) {
  std::error_code error;
  fs::create_directories(out, error);
  if (error) return io_error(out, "create the folder", error);
  const bool ours = fs::exists(out / kMarker, error);
  const bool empty = fs::is_empty(out, error);
  if (error) return io_error(out, "read the folder", error);
  if (!ours && !empty && !force) {
    const bool finished = fs::exists(out / "config.json", error);
    return invalid(fmt::format("{} {}; choose another folder, or give --force to write into it", out.string(),
                               finished ? "already holds a checkpoint" : "is not empty"));
  }
  CALLA_TRY(write_file(out / kMarker, "This checkpoint is unfinished: run the same command again to go on.\n"));
  for (const char* name : {"config.json", kIndex}) {
    fs::remove(out / name, error);
    if (error) return io_error(out / name, "remove", error);
  }
  for (const auto& entry : fs::directory_iterator(out, error)) {
    if (entry.path().string().ends_with(".safetensors.part")) fs::remove(entry.path(), error);
  }
  return {};
}

}  // namespace

Result<WriteSummary> write_checkpoint(const fs::path& out, const std::vector<Part>& body, const std::vector<Part>& mtp,
                                      const std::string& config,
                                      const std::vector<std::pair<std::string, std::string>>& extra,
                                      const PartSource& source, const WriteOptions& options) {
  CALLA_TRY(prepare_folder(out, options.force));
  std::vector<Shard> shards = plan_shards(body, mtp, options.shard_bytes);
  WriteSummary summary;
  summary.shards = static_cast<int>(shards.size());
  for (Shard& shard : shards) {
    std::error_code ignored;
    shard.kept = fs::exists(out / shard.name, ignored) && is_what_we_would_write(out / shard.name, shard, source);
    if (!shard.kept) fs::remove(out / shard.name, ignored);
    summary.bytes += shard.bytes();
    if (shard.kept) summary.kept_bytes += shard.bytes();
  }
  const uint64_t needed = summary.bytes - summary.kept_bytes;
  std::error_code error;
  if (const fs::space_info space = fs::space(out, error); !error && space.available < needed) {
    return fail(Error::Code::kIo, fmt::format("{} needs {}, but its disk has {} free", out.string(),
                                              format_bytes(needed), format_bytes(space.available)));
  }
  {
    Pool pool(options.threads);
    Progress progress(options.label, needed);
    ShardWriter writer(source, pool, progress);
    for (const Shard& shard : shards) {
      if (!shard.kept) CALLA_TRY(writer.write(out / shard.name, shard));
    }
  }
  CALLA_TRY(write_file(out / kIndex, index_json(shards)));
  for (const auto& [name, content] : extra) CALLA_TRY(write_file(out / name, content));
  CALLA_TRY(write_file(out / "config.json", config));
  fs::remove(out / kMarker, error);
  return summary;
}

}  // namespace calla
