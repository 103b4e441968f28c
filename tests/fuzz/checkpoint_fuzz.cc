// A whole checkpoint: u32 size of the data, config.json, NUL, safetensors header. The data are zeros of that size.
// Whatever binds must be readable from end to end.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "model/weights.h"

namespace {

void touch(const calla::Linear& w) {
  if (w.out == 0) return;
  std::vector<double> row(w.in);
  calla::dequantize_row<double>(w, 0, row);
  calla::dequantize_row<double>(w, w.out - 1, row);
}

void touch(const calla::Mlp& m) {
  touch(m.gate);
  touch(m.up);
  touch(m.down);
}

void touch(const calla::Layer& layer) {
  for (const auto* w : {&layer.attn.q, &layer.attn.k, &layer.attn.v, &layer.attn.o, &layer.gdn.qkv, &layer.gdn.z,
                        &layer.gdn.b, &layer.gdn.a, &layer.gdn.out, &layer.moe.router, &layer.moe.shared_gate}) {
    touch(*w);
  }
  for (const auto& expert : layer.moe.experts) touch(expert);
  touch(layer.moe.shared);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t data_bytes = 0;
  if (size < sizeof data_bytes) return 0;
  std::memcpy(&data_bytes, data, sizeof data_bytes);
  data_bytes = std::min(data_bytes, 1u << 20);
  const std::string_view text(reinterpret_cast<const char*>(data) + sizeof data_bytes, size - sizeof data_bytes);
  const size_t nul = text.find('\0');
  if (nul == std::string_view::npos) return 0;
  auto config = calla::parse_config(text.substr(0, nul));
  if (!config) return 0;

  const std::string_view header = text.substr(nul + 1);
  const uint64_t header_bytes = header.size();
  std::vector<std::byte> file(sizeof header_bytes + header.size() + data_bytes);
  std::memcpy(file.data(), &header_bytes, sizeof header_bytes);
  std::copy_n(reinterpret_cast<const std::byte*>(header.data()), header.size(), file.data() + sizeof header_bytes);
  auto tensors = calla::parse_safetensors(file, "fuzz");
  if (!tensors) return 0;

  const auto checkpoint = calla::Checkpoint::assemble(std::move(*config), std::move(*tensors));
  const auto weights = calla::bind_weights(checkpoint);
  if (!weights) return 0;
  touch(weights->tokens);
  touch(weights->head);
  for (const auto& layer : weights->layers) touch(layer);
  if (weights->mtp) {
    touch(weights->mtp->fc);
    touch(weights->mtp->layer);
  }
  return weights->bytes_per_token() > 0 ? 0 : 1;
}
