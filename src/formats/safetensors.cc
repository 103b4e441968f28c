#include "formats/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "formats/printable.h"

namespace calla {
namespace {

namespace dom = simdjson::dom;

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian and are used in place");

struct DtypeRow {
  std::string_view name;
  size_t bytes;
};
// In the order of the enum.
constexpr std::array<DtypeRow, 13> kDtypes{{{"BF16", 2},
                                            {"F16", 2},
                                            {"F32", 4},
                                            {"F64", 8},
                                            {"U8", 1},
                                            {"I8", 1},
                                            {"U16", 2},
                                            {"I16", 2},
                                            {"U32", 4},
                                            {"I32", 4},
                                            {"U64", 8},
                                            {"I64", 8},
                                            {"BOOL", 1}}};

constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxDims = 8;

std::optional<Dtype> dtype_from(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

// A tensor as the header describes it; begin and end count from the end of the header.
struct Entry {
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

// Parses one entry of the header. Messages continue "FILE: tensor NAME".
Result<Entry> parse_entry(const dom::element& element) {
  dom::object object;
  if (element.get(object)) return invalid(": expected an object");
  Entry entry;
  bool has_dtype = false, has_shape = false, has_offsets = false;
  const auto first = [](bool& seen) { return !std::exchange(seen, true); };
  for (const auto [key, value] : object) {
    if (key == "dtype" && first(has_dtype)) {
      std::string_view name;
      if (value.get(name)) return invalid(": dtype is not a string");
      const auto dtype = dtype_from(name);
      if (!dtype) return fail(Error::Code::kUnsupported, fmt::format(": unknown dtype \"{}\"", printable(name)));
      entry.dtype = *dtype;
    } else if (key == "shape" && first(has_shape)) {
      dom::array dims;
      if (value.get(dims)) return invalid(": shape is not an array");
      for (const auto dim : dims) {
        uint64_t n = 0;
        if (dim.get(n) || n > uint64_t{INT64_MAX}) return invalid(": shape holds something other than a size");
        if (entry.shape.size() == kMaxDims) return invalid(fmt::format(": more than {} dimensions", kMaxDims));
        entry.shape.push_back(static_cast<int64_t>(n));
      }
    } else if (key == "data_offsets" && first(has_offsets)) {
      dom::array offsets;
      if (value.get(offsets) || offsets.size() != 2 || offsets.at(0).get(entry.begin) || offsets.at(1).get(entry.end)) {
        return invalid(": data_offsets is not a pair of offsets");
      }
    } else {
      return invalid(fmt::format(": unexpected or repeated field \"{}\"", printable(key)));
    }
  }
  if (!has_dtype || !has_shape || !has_offsets) return invalid(": dtype, shape or data_offsets is missing");
  if (entry.end < entry.begin)
    return invalid(fmt::format(": data_offsets [{}, {}] run backwards", entry.begin, entry.end));
  uint64_t bytes = dtype_bytes(entry.dtype);
  for (const int64_t n : entry.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(n), &bytes)) {
      return invalid(fmt::format(": shape [{}] is too large", fmt::join(entry.shape, ", ")));
    }
  }
  if (bytes != entry.end - entry.begin) {
    return invalid(fmt::format(": {} [{}] takes {} bytes, but data_offsets [{}, {}] hold {}", dtype_name(entry.dtype),
                               fmt::join(entry.shape, ", "), bytes, entry.begin, entry.end, entry.end - entry.begin));
  }
  return entry;
}

// The tensors must lie one after another, from the end of the header to the end of the file.
Result<void> check_layout(const std::map<std::string, Entry, std::less<>>& entries, uint64_t data_bytes,
                          std::string_view file) {
  std::vector<std::pair<const Entry*, const std::string*>> order;
  order.reserve(entries.size());
  for (const auto& [name, entry] : entries) {
    if (entry.end > data_bytes) {
      return fail(Error::Code::kIo,
                  fmt::format("{}: file short: tensor {} ends at byte {} of the data, but the file holds {}", file,
                              printable(name), entry.end, data_bytes));
    }
    order.emplace_back(&entry, &name);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  uint64_t at = 0;
  for (const auto& [entry, name] : order) {
    if (entry->begin != at) {
      return invalid(
          fmt::format("{}: tensor {} starts at byte {} of the data, {} the tensor before it, which ends at {}", file,
                      printable(*name), entry->begin, entry->begin < at ? "overlapping" : "leaving a gap after", at));
    }
    at = entry->end;
  }
  if (at != data_bytes) return invalid(fmt::format("{}: {} bytes after the last tensor", file, data_bytes - at));
  return {};
}

Result<void> check_metadata(const dom::element& element, std::string_view file) {
  dom::object object;
  if (element.get(object)) return invalid(fmt::format("{}: __metadata__ is not an object", file));
  for (const auto [key, value] : object) {
    if (!value.is_string())
      return invalid(fmt::format("{}: __metadata__ field \"{}\" is not a string", file, printable(key)));
  }
  return {};
}

}  // namespace

size_t dtype_bytes(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].bytes;
}
std::string_view dtype_name(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}

Result<TensorMap> parse_safetensors(std::span<const std::byte> file, std::string_view name) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) {
    return fail(Error::Code::kIo,
                fmt::format("{}: file short: {} bytes cannot hold a safetensors header", name, file.size()));
  }
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const auto rest = file.subspan(sizeof header_bytes);
  if (header_bytes > kMaxHeader) {
    return invalid(fmt::format("{}: not a safetensors file: its header would take {} bytes, more than {}", name,
                               header_bytes, kMaxHeader));
  }
  if (header_bytes > rest.size()) {
    return fail(Error::Code::kIo, fmt::format("{}: file short: the header takes {} bytes, but only {} follow", name,
                                              header_bytes, rest.size()));
  }
  const auto data = rest.subspan(header_bytes);

  dom::parser parser;
  dom::object header;
  // Depth: the header, a tensor, its shape; one more so that the error is ours.
  auto error = parser.allocate(std::max<size_t>(header_bytes, 64), 8);
  if (!error) error = parser.parse(reinterpret_cast<const char*>(rest.data()), header_bytes, true).get(header);
  if (error)
    return invalid(fmt::format("{}: the header is not a JSON object: {}", name, simdjson::error_message(error)));

  std::map<std::string, Entry, std::less<>> entries;
  bool has_metadata = false;
  for (const auto [key, value] : header) {
    if (key == "__metadata__") {
      if (std::exchange(has_metadata, true)) return invalid(fmt::format("{}: __metadata__ appears twice", name));
      CALLA_TRY(check_metadata(value, name));
      continue;
    }
    auto entry = parse_entry(value);
    if (!entry)
      return fail(entry.error().code, fmt::format("{}: tensor {}{}", name, printable(key), entry.error().message));
    if (!entries.emplace(key, std::move(*entry)).second) {
      return invalid(fmt::format("{}: tensor {} appears twice in the header", name, printable(key)));
    }
  }
  CALLA_TRY(check_layout(entries, data.size(), name));

  TensorMap tensors;
  for (auto& [key, entry] : entries) {
    tensors.emplace_hint(
        tensors.end(), key,
        TensorView{entry.dtype, std::move(entry.shape), data.subspan(entry.begin, entry.end - entry.begin)});
  }
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file;
  CALLA_ASSIGN(file.file_, MappedFile::open(path));
  CALLA_ASSIGN(file.tensors_, parse_safetensors(file.file_.bytes(), path.string()));
  return file;
}

}  // namespace calla
