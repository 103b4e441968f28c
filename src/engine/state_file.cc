#include "engine/state_file.h"

#include <fmt/format.h>

namespace calla {
namespace {

class Fnv1a {  // Fowler, Noll, Vo: 64-bit FNV-1a
 public:
  void add(std::span<const std::byte> bytes) {
    for (std::byte b : bytes) hash_ = (hash_ ^ static_cast<uint64_t>(b)) * 0x100000001b3ull;
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ull;
};

constexpr size_t kHashedBytes = 64;

}  // namespace

uint64_t fingerprint(const Checkpoint& checkpoint) {
  Fnv1a hash;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    hash.add(name);
    hash.add(fmt::format(" {} {} ", dtype_name(tensor.dtype), fmt::join(tensor.shape, ",")));
    hash.add(tensor.data.first(std::min(kHashedBytes, tensor.data.size())));
  }
  return hash.value();
}

Result<StateFile> StateFile::open(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  StateFile state;
  CALLA_ASSIGN(state.file_, SafetensorsFile::open(path));
  CALLA_ASSIGN(const auto print, state.tensor("fingerprint", Dtype::kU64, {1}));
  uint64_t value = 0;
  std::memcpy(&value, print.data(), sizeof value);
  if (value != fingerprint(checkpoint)) {
    return invalid(fmt::format("{} was saved with other weights than {}", path.string(), checkpoint.dir().string()));
  }
  const auto found = state.file_.tensors().find("tokens");
  const int64_t n =
      found != state.file_.tensors().end() && found->second.shape.size() == 1 ? found->second.shape[0] : 0;
  CALLA_ASSIGN(const auto tokens, state.tensor("tokens", Dtype::kI32, {n}));
  state.tokens_.resize(n);
  copy_bytes(tokens, state.tokens_.data());
  for (int32_t id : state.tokens_) {
    if (id < 0 || id >= checkpoint.config().vocab)
      return invalid(fmt::format("{}: token id {} is out of range", path.string(), id));
  }
  return state;
}

Result<std::span<const std::byte>> StateFile::tensor(std::string_view name, Dtype dtype,
                                                     const std::vector<int64_t>& shape) const {
  const std::string path = file_.file().path().string();
  const auto found = file_.tensors().find(name);
  if (found == file_.tensors().end())
    return invalid(fmt::format("{} is not a saved sequence: it has no tensor {}", path, name));
  const TensorView& t = found->second;
  if (t.dtype != dtype || t.shape != shape) {
    return invalid(fmt::format("{}: {} is {} [{}], expected {} [{}]", path, name, dtype_name(t.dtype),
                               fmt::join(t.shape, ", "), dtype_name(dtype), fmt::join(shape, ", ")));
  }
  return t.data;
}

Result<void> write_state_tensors(const std::filesystem::path& path, const Checkpoint& checkpoint,
                                 std::span<const int32_t> tokens, std::vector<TensorData> tensors) {
  const uint64_t print = fingerprint(checkpoint);
  tensors.push_back({"fingerprint", Dtype::kU64, {1}, std::as_bytes(std::span(&print, 1))});
  tensors.push_back({"tokens", Dtype::kI32, {static_cast<int64_t>(tokens.size())}, std::as_bytes(tokens)});
  return write_safetensors(path, tensors);
}

}  // namespace calla
