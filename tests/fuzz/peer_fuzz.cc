// The output of a peer's benchmark. What is accepted can be compared with: counts in range, rates that have a median.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "bench/peer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tests = calla::parse_peer({reinterpret_cast<const char*>(data), size});
  if (!tests) {
    if (tests.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  if (tests->empty()) std::abort();
  for (const calla::PeerTest& t : *tests) {
    if (t.tokens < 1 || t.depth < 0 || t.rates.empty()) std::abort();
    for (const double rate : t.rates) {
      if (!(std::isfinite(rate) && rate > 0)) std::abort();
    }
  }
  return 0;
}
