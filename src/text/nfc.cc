#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace calla {
namespace {

constexpr size_t kBlock = 32;
constexpr uint8_t kFirstUnsafe = 0xcc;  // the first byte of U+0300; all characters below are boundaries and NFC

bool any_unsafe(const char* block) {
  bool any = false;
  for (size_t i = 0; i < kBlock; ++i) any |= static_cast<uint8_t>(block[i]) >= kFirstUnsafe;
  return any;
}

// The first byte at or after `at` that starts a character at which text must not be cut or that is not NFC.
// REQUIRES: `at` is a character's first byte.
size_t find_unsafe(std::string_view text, size_t at) {
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < kFirstUnsafe) {
      if (text.size() - at >= kBlock && !any_unsafe(text.data() + at)) {
        at += kBlock;
        while (at < text.size() && (text[at] & 0xc0) == 0x80) ++at;
      } else {
        at += utf8_length(text[at]);
      }
      continue;
    }
    if (!nfc_boundary(utf8_at(text.data() + at))) return at;
    at += utf8_length(text[at]);
  }
  return text.size();
}

int combining_class(utf8proc_int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

// Appends the NFC of `text` to out, through decomposition, canonical ordering and composition. `work` is scratch.
void compose(std::string_view text, std::vector<utf8proc_int32_t>& work, std::string& out) {
  work.clear();
  for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
    utf8proc_int32_t parts[8];  // a canonical decomposition has at most four
    const auto c = static_cast<utf8proc_int32_t>(utf8_at(text.data() + i));
    const auto n = utf8proc_decompose_char(c, parts, std::size(parts), UTF8PROC_DECOMPOSE, nullptr);
    CHECK(n > 0 && n <= static_cast<utf8proc_ssize_t>(std::size(parts)), "a character decomposes into at most eight");
    work.insert(work.end(), parts, parts + n);
  }
  const auto is_starter = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
  const auto by_class = [](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); };
  for (auto run = work.begin(); run != work.end();) {
    run = std::find_if_not(run, work.end(), is_starter);
    const auto end = std::find_if(run, work.end(), is_starter);
    if (!std::is_sorted(run, end, by_class)) std::stable_sort(run, end, by_class);
    run = end;
  }
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const auto n = utf8proc_normalize_utf32(work.data(), static_cast<utf8proc_ssize_t>(work.size()), options);
  CHECK(n >= 0, "utf8proc composes any sequence of code points");
  for (utf8proc_ssize_t i = 0; i < n; ++i) append_utf8(static_cast<uint32_t>(work[static_cast<size_t>(i)]), out);
}

}  // namespace

bool surely_nfc(std::string_view text) {
  return find_unsafe(text, 0) == text.size();
}

// Only what lies between two boundaries goes through utf8proc: from the last boundary before an unsafe character, which
// may compose with it, to the next boundary after it.
std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> work;
  size_t done = 0;
  while (done < text.size()) {
    const size_t unsafe = find_unsafe(text, done);
    size_t begin = unsafe;
    if (unsafe < text.size() && begin > done) {
      do --begin;
      while (begin > done && (text[begin] & 0xc0) == 0x80);
    }
    out += text.substr(done, begin - done);
    size_t end = unsafe;
    while (end < text.size() && !nfc_boundary(utf8_at(text.data() + end))) end += utf8_length(text[end]);
    compose(text.substr(begin, end - begin), work, out);
    done = end;
  }
  return out;
}

}  // namespace calla
