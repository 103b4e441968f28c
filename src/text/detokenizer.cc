#include "text/detokenizer.h"

#include <utility>

#include "text/utf8.h"

namespace calla {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  std::string text = std::exchange(held_, {});
  text += tokenizer_->bytes(id);
  const size_t certain = text.size() - incomplete_utf8(text);
  held_ = text.substr(certain);
  text.resize(certain);
  return valid_utf8(text) ? text : repair_utf8(text);
}

std::string Detokenizer::finish() {
  return repair_utf8(std::exchange(held_, {}));
}

}  // namespace calla
