#include "engine/state_file.h"

#include <fmt/format.h>

#include "base/sha256.h"

namespace calla {
namespace {

constexpr size_t kHashedBytes = 64;
constexpr int64_t kPrintLength = 64;

}  // namespace

std::string fingerprint(const Checkpoint& checkpoint) {
  std::string all;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    all += fmt::format("{} {} {} ", name, dtype_name(tensor.dtype), fmt::join(tensor.shape, ","));
    const auto start = tensor.data.first(std::min(kHashedBytes, tensor.data.size()));
    all.append(reinterpret_cast<const char*>(start.data()), start.size());
  }
  return sha256_hex(all);
}

Result<StateFile> StateFile::open(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  StateFile state;
  CALLA_ASSIGN(state.file_, SafetensorsFile::open(path));
  CALLA_ASSIGN(const auto print, state.tensor("fingerprint", Dtype::kU8, {kPrintLength}));
  if (const std::string ours = fingerprint(checkpoint); !std::ranges::equal(print, std::as_bytes(std::span(ours)))) {
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
  const std::string print = fingerprint(checkpoint);
  tensors.push_back({"fingerprint", Dtype::kU8, {kPrintLength}, std::as_bytes(std::span(print))});
  tensors.push_back({"tokens", Dtype::kI32, {static_cast<int64_t>(tokens.size())}, std::as_bytes(tokens)});
  return write_safetensors(path, tensors);
}

}  // namespace calla
