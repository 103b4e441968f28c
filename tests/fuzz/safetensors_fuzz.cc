// The header parser on arbitrary bytes: whatever it accepts must lie inside the input, one tensor after another.

#include <cstdint>
#include <cstdlib>
#include <span>

#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto tensors = calla::parse_safetensors(file, "fuzz");
  if (!tensors) {
    if (tensors.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  uint64_t total = 0, sum = 0;
  for (const auto& [name, tensor] : *tensors) {
    uint64_t bytes = calla::dtype_bytes(tensor.dtype);
    for (const int64_t dim : tensor.shape) bytes *= static_cast<uint64_t>(dim);
    if (bytes != tensor.data.size()) std::abort();
    for (const std::byte b : tensor.data) sum += static_cast<uint64_t>(b);  // ASan: inside the input
    total += bytes;
  }
  if (total > size || sum > 255 * total) std::abort();
  return 0;
}
