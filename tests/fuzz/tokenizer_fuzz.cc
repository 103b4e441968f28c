// Any bytes as tokenizer.json, or, after a NUL, as tokenizer_config.json: one error or a tokenizer that keeps its
// promises.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

using namespace calla;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view config = end == std::string_view::npos ? "" : input.substr(end + 1);
  const Result<Tokenizer> t = Tokenizer::parse(input.substr(0, end), config);
  if (!t) {
    CHECK(!t.error().message.empty() && t.error().message.find('\n') == std::string::npos, "an error is one line");
    return 0;
  }
  const std::string_view text = "It's the 12 <|im_end|> <think>\n\n  tokens; aaaaaaaa";
  std::vector<int32_t> ids;
  t->encode(text, ids);
  std::string bytes;
  for (const int32_t id : ids) {
    CHECK(!t->is_control(id), "plain text never becomes a control token");
    bytes += t->bytes(id);
  }
  CHECK(bytes == text, "the bytes of the ids are the text");
  Detokenizer detokenizer(*t, /*skip_special=*/false);
  std::string official;
  for (const int32_t id : t->encode_official(text)) official += detokenizer.push(id);
  CHECK(official + detokenizer.finish() == text, "so are those of the official ids");
  return 0;
}
