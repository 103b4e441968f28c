#include "text/vocab.h"

#include <bit>
#include <cstring>

namespace calla {
namespace {

uint64_t mix(uint64_t h) {
  h *= 0x9e3779b97f4a7c15ull;
  return h ^ h >> 32;
}

// Eight bytes at a time; the length is part of the seed, so the zeros that fill up the last word are not ambiguous.
uint64_t hash(std::string_view s) {
  uint64_t h = mix(s.size() + 1);
  while (s.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, s.data(), 8);
    h = mix(h ^ word);
    s.remove_prefix(8);
  }
  uint64_t word = 0;
  for (size_t i = 0; i < s.size(); ++i) word |= static_cast<uint64_t>(static_cast<uint8_t>(s[i])) << 8 * i;
  return mix(h ^ word);
}

}  // namespace

void Vocab::reserve(size_t tokens, size_t bytes) {
  bytes_.reserve(bytes);
  spans_.reserve(tokens);
  slots_.assign(std::bit_ceil(2 * tokens + 1), Slot{});
}

size_t Vocab::slot(std::string_view s, uint64_t h) const {
  const auto tag = static_cast<uint32_t>(h >> 32);
  const size_t mask = slots_.size() - 1;
  size_t i = h & mask;
  while (slots_[i].id != kNone && (slots_[i].tag != tag || bytes(slots_[i].id) != s)) i = (i + 1) & mask;
  return i;
}

int32_t Vocab::find(std::string_view s) const {
  return slots_[slot(s, hash(s))].id;
}

bool Vocab::add(int32_t id, std::string_view s) {
  const uint64_t h = hash(s);
  const size_t i = slot(s, h);
  if (slots_[i].id != kNone || !add_hidden(id, s)) return false;
  slots_[i] = {static_cast<uint32_t>(h >> 32), id};
  return true;
}

bool Vocab::add_hidden(int32_t id, std::string_view bytes) {
  if (!this->bytes(id).empty()) return false;
  const auto at = static_cast<size_t>(id);
  if (at >= spans_.size()) spans_.resize(at + 1);
  spans_[at] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(bytes.size())};
  bytes_ += bytes;
  return true;
}

}  // namespace calla
