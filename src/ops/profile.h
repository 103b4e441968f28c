#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace calla {

// What the calls of one verb (ops/ops.h) cost together; products are kept apart by their widths.
struct VerbCost {
  std::string_view verb;
  int in = 0, out = 0;  // widths of a product, all matrices with the same input together; 0 for other verbs
  uint64_t calls = 0;
  double seconds = 0;
  uint64_t bytes = 0;  // weights, keys, values and recurrent state, each once a call; activations are not counted
  uint64_t macs = 0;   // multiplications with an addition
};

struct Profile {
  std::vector<VerbCost> verbs;  // in the order of their first call

  void add(const VerbCost& cost) {
    for (VerbCost& v : verbs) {
      if (v.verb != cost.verb || v.in != cost.in || v.out != cost.out) continue;
      v.calls += cost.calls;
      v.seconds += cost.seconds;
      v.bytes += cost.bytes;
      v.macs += cost.macs;
      return;
    }
    verbs.push_back(cost);
  }
};

}  // namespace calla
