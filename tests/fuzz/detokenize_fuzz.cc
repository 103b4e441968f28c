// Any ids, two bytes each: the streamed pieces are whole characters and together the repaired bytes of all tokens.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

using namespace calla;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Result<Tokenizer> t = Tokenizer::load(std::filesystem::path(CALLA_SOURCE_DIR) / "tests/text/data/tiny");
  CHECK(t, "the tests' tokenizer loads");
  Detokenizer detokenizer(*t, /*skip_special=*/false);
  std::string bytes;
  std::string text;
  for (size_t i = 0; i + 1 < size; i += 2) {
    const int32_t id = data[i] | data[i + 1] << 8;
    bytes += t->bytes(id);
    const std::string piece = detokenizer.push(id);
    CHECK(valid_utf8(piece), "only whole characters come out");
    text += piece;
  }
  text += detokenizer.finish();
  CHECK(text == repair_utf8(bytes), "the pieces joined are the repaired bytes");
  return 0;
}
