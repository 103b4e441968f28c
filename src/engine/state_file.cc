#include "engine/state_file.h"

#include <fmt/format.h>

#include "base/sha256.h"

namespace calla {
namespace {

constexpr size_t kHashedBytes = 64;
constexpr int64_t kPrintLength = 64;
// Tensors after the state's own three.
constexpr size_t kTokens = 3, kPrint = 4, kSum = 5;

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

Result<std::span<const std::byte>> StateFile::bytes_of(std::string_view name) const {
  const auto found = file_.tensors().find(name);
  if (found == file_.tensors().end()) {
    return invalid(fmt::format("{} is not a saved sequence: it has no tensor {}", file_.file().path().string(), name));
  }
  return found->second.data;
}

Result<void> StateFile::verify() const {
  Checksum sum;
  for (const char* name : {"recurrent", "window", "kv", "tokens"}) {
    CALLA_ASSIGN(const auto data, bytes_of(name));
    sum.add(data);
  }
  CALLA_ASSIGN(const auto stored, tensor("checksum", Dtype::kU8, {sizeof(uint64_t)}));
  const uint64_t value = sum.value();
  if (std::memcmp(stored.data(), &value, sizeof value) == 0) return {};
  return fail(Error::Code::kIo,
              fmt::format("{} is damaged: its checksum does not match", file_.file().path().string()));
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

Result<StateFileWriter> StateFileWriter::create(const std::filesystem::path& path, std::vector<TensorSpec> state,
                                                const Checkpoint& checkpoint, std::span<const int32_t> tokens) {
  const std::string print = fingerprint(checkpoint);
  state.push_back({"tokens", Dtype::kI32, {static_cast<int64_t>(tokens.size())}});
  state.push_back({"fingerprint", Dtype::kU8, {kPrintLength}});
  state.push_back({"checksum", Dtype::kU8, {sizeof(uint64_t)}});
  StateFileWriter out;
  CALLA_ASSIGN(out.writer_, SafetensorsWriter::create(path, std::move(state)));
  CALLA_TRY(out.writer_.write(kPrint, 0, std::as_bytes(std::span(print))));
  return out;
}

Result<void> StateFileWriter::write(size_t tensor, std::span<const std::byte> data) {
  if (tensor != tensor_) offset_ = 0;
  tensor_ = tensor;
  sum_.add(data);
  CALLA_TRY(writer_.write(tensor, offset_, data));
  offset_ += data.size();
  return {};
}

Result<void> StateFileWriter::commit(std::span<const int32_t> tokens) {
  CALLA_TRY(write(kTokens, std::as_bytes(tokens)));
  const uint64_t value = sum_.value();
  CALLA_TRY(writer_.write(kSum, 0, std::as_bytes(std::span(&value, 1))));
  return writer_.commit();
}

}  // namespace calla
