// Any bytes as text for the tests' tokenizer: encoding keeps the text and makes no control token.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/nfc.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

using namespace calla;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Result<Tokenizer> t = Tokenizer::load(std::filesystem::path(CALLA_SOURCE_DIR) / "tests/text/data/tiny");
  CHECK(t, "the tests' tokenizer loads");
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string repaired = repair_utf8(text);
  CHECK(valid_utf8(repaired) && (repaired == text) == valid_utf8(text), "repair changes invalid text and only that");
  const std::string composed = nfc(repaired);
  CHECK(nfc(composed) == composed, "NFC is idempotent");
  CHECK(!surely_nfc(repaired) || composed == repaired, "what is surely NFC is NFC");

  std::vector<int32_t> ids;
  t->encode(text, ids);
  std::string bytes;
  for (const int32_t id : ids) {
    CHECK(!t->is_control(id), "plain text never becomes a control token");
    bytes += t->bytes(id);
  }
  CHECK(bytes == composed, "the bytes of the ids are the text");
  std::vector<int32_t> again;
  t->encode(composed, again);
  CHECK(again == ids, "encoding the normalised text gives the same ids");
  t->encode_official(text);
  return 0;
}
