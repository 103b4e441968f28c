#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace calla {

// Token ids and their bytes, both ways. Ids may have gaps. Thread safety: const methods from any number of threads.
class Vocab {
 public:
  static constexpr int32_t kNone = -1;

  // Makes room in the index for `tokens` calls of add, of `bytes` bytes together.
  void reserve(size_t tokens, size_t bytes);

  // Gives id its bytes and makes them findable. False, and nothing changes, if the id or the bytes are taken.
  // REQUIRES: id >= 0, bytes not empty, at most as many calls as reserved.
  [[nodiscard]] bool add(int32_t id, std::string_view bytes);
  // The same for a token that find must not return.
  [[nodiscard]] bool add_hidden(int32_t id, std::string_view bytes);

  // Empty for an id that has no token.
  std::string_view bytes(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= spans_.size()) return {};
    return std::string_view(bytes_).substr(spans_[static_cast<size_t>(id)].offset,
                                           spans_[static_cast<size_t>(id)].length);
  }
  // kNone if no token that was added has these bytes.
  int32_t find(std::string_view bytes) const;

  // One past the largest id.
  int32_t size() const { return static_cast<int32_t>(spans_.size()); }

 private:
  struct Range {
    uint32_t offset = 0;
    uint32_t length = 0;
  };
  struct Slot {
    uint32_t tag = 0;  // part of the hash, so that most wrong slots are passed without looking at their bytes
    int32_t id = kNone;
  };
  // The slot of the token with these bytes and this hash, or the empty one where it would be.
  size_t slot(std::string_view bytes, uint64_t hash) const;

  std::string bytes_;
  std::vector<Range> spans_;
  std::vector<Slot> slots_{1};  // open addressing, a power of two, at most half full
};

}  // namespace calla
