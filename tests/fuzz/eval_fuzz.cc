// The files of calla eval on arbitrary bytes: unfinished scores and saved logits. What is accepted must be usable.

#include <cmath>
#include <cstdlib>
#include <span>

#include "eval/score_file.h"
#include "eval/scoring.h"
#include "eval/summary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensors = calla::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz");
  if (!tensors) return 0;
  if (const auto scores = calla::parse_scores(*tensors, "fuzz", {{"text", "t"}}, 1000); scores && !scores->empty()) {
    const calla::Summary summary = calla::summarize(*scores, {}, true);
    if (!(summary.agreement->top1.value >= 0 && summary.agreement->top1.value <= 1)) std::abort();
  }
  if (auto saved = calla::SavedLogits::parse(*tensors, "fuzz")) {
    if (!saved->restart(0)) std::abort();
    const auto rows = saved->feed(saved->ids(), true);
    if (!rows || rows->size() != saved->ids().size() * static_cast<size_t>(saved->vocab())) std::abort();
    if (saved->ids().back() >= saved->vocab()) std::abort();
  }
  return 0;
}
