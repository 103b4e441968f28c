#include "formats/checkpoint.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "formats/printable.h"

namespace calla {
namespace {

namespace fs = std::filesystem;
namespace dom = simdjson::dom;

constexpr uint64_t kMaxConfig = 16 << 20;
constexpr uint64_t kMaxIndex = 256 << 20;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kMtp = "mtp.safetensors";

// A shard is a file of the folder itself; anything else could read outside of it.
bool is_shard_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Result<void> check_against_index(const SafetensorsFile& shard, const std::string& name, const IndexMap& index,
                                 const fs::path& path) {
  for (const auto& [tensor, view] : shard.tensors()) {
    const auto it = index.find(tensor);
    if (it == index.end()) {
      return invalid(fmt::format("{}: tensor {} is not in {}", path.string(), printable(tensor), kIndex));
    }
    if (it->second != name) {
      return invalid(fmt::format("{}: tensor {} is here, but {} says {}", path.string(), printable(tensor), kIndex,
                                 printable(it->second)));
    }
  }
  return {};
}

bool present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

Result<IndexMap> parse_index(std::string_view json) {
  const auto bad = [](std::string what) { return invalid(fmt::format("{}: {}", kIndex, what)); };
  dom::parser parser;
  dom::element root;
  auto error = parser.allocate(std::max<size_t>(json.size(), 64), 32);
  if (!error) error = parser.parse(json.data(), json.size(), true).get(root);
  if (error) return bad(fmt::format("not valid JSON: {}", simdjson::error_message(error)));
  dom::object map;
  if (root["weight_map"].get(map)) return bad("weight_map is missing or not an object");
  IndexMap index;
  for (const auto [tensor, value] : map) {
    std::string_view shard;
    if (value.get(shard)) return bad(fmt::format("the shard of tensor {} is not a string", printable(tensor)));
    if (shard.empty() || !is_shard_name(shard)) {
      return bad(
          fmt::format("tensor {} is said to be in \"{}\", which is not the name of a .safetensors file in this folder",
                      printable(tensor), printable(shard)));
    }
    if (!index.emplace(tensor, shard).second) return bad(fmt::format("tensor {} appears twice", printable(tensor)));
  }
  if (index.empty()) return bad("weight_map is empty");
  return index;
}

Result<void> Checkpoint::add(SafetensorsFile file) {
  for (const auto& [name, view] : file.tensors()) {
    if (!tensors_.emplace(name, view).second) {
      return invalid(
          fmt::format("{}: tensor {} is also in another file", file.file().path().string(), printable(name)));
    }
  }
  files_.push_back(std::move(file));
  return {};
}

Result<void> Checkpoint::open_shards() {
  CALLA_ASSIGN(const std::string text, read_file(dir_ / kIndex, kMaxIndex));
  auto parsed = parse_index(text);
  if (!parsed) return fail(parsed.error().code, fmt::format("{}: {}", dir_.string(), parsed.error().message));
  const IndexMap& index = *parsed;
  std::set<std::string> names;
  for (const auto& [tensor, shard] : index) names.insert(shard);
  for (const std::string& name : names) {
    const fs::path path = dir_ / name;
    if (!present(path))
      return fail(Error::Code::kNotFound,
                  fmt::format("{}: shard {} is missing, {} names it", dir_.string(), name, kIndex));
    CALLA_ASSIGN(SafetensorsFile file, SafetensorsFile::open(path));
    CALLA_TRY(check_against_index(file, name, index, path));
    CALLA_TRY(add(std::move(file)));
  }
  for (const auto& [tensor, shard] : index) {
    if (!tensors_.contains(tensor)) {
      return fail(Error::Code::kNotFound, fmt::format("{}: tensor {} is missing, {} promises it",
                                                      (dir_ / shard).string(), printable(tensor), kIndex));
    }
  }
  // The MTP head of a converted checkpoint lies beside the index, because some loaders refuse names they do not know.
  if (!names.contains(kMtp) && present(dir_ / kMtp)) {
    CALLA_ASSIGN(SafetensorsFile mtp, SafetensorsFile::open(dir_ / kMtp));
    CALLA_TRY(add(std::move(mtp)));
  }
  return {};
}

Result<Checkpoint> Checkpoint::open(const fs::path& dir) {
  std::error_code error;
  if (!fs::is_directory(dir, error))
    return fail(Error::Code::kNotFound, fmt::format("{} is not a folder", dir.string()));
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  CALLA_ASSIGN(const std::string text, read_file(dir / "config.json", kMaxConfig));
  auto config = parse_config(text);
  if (!config) return fail(config.error().code, fmt::format("{}: {}", dir.string(), config.error().message));
  checkpoint.config_ = std::move(*config);
  if (present(dir / kIndex)) {
    CALLA_TRY(checkpoint.open_shards());
    return checkpoint;
  }
  if (!present(dir / kSingle)) {
    return fail(Error::Code::kNotFound, fmt::format("{} holds neither {} nor {}", dir.string(), kIndex, kSingle));
  }
  for (const char* name : {kSingle, kMtp}) {
    if (!present(dir / name)) continue;
    CALLA_ASSIGN(SafetensorsFile file, SafetensorsFile::open(dir / name));
    CALLA_TRY(checkpoint.add(std::move(file)));
  }
  return checkpoint;
}

Checkpoint Checkpoint::assemble(ModelConfig config, TensorMap tensors) {
  Checkpoint checkpoint;
  checkpoint.dir_ = "memory";
  checkpoint.config_ = std::move(config);
  checkpoint.tensors_ = std::move(tensors);
  return checkpoint;
}

std::string Checkpoint::file_of(const TensorView& tensor) const {
  for (const SafetensorsFile& file : files_) {
    const auto bytes = file.file().bytes();
    if (tensor.data.data() >= bytes.data() && tensor.data.data() <= bytes.data() + bytes.size())
      return file.file().path().string();
  }
  return dir_.string();
}

uint64_t Checkpoint::total_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor.data.size();
  return bytes;
}

}  // namespace calla
