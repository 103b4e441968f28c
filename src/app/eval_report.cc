#include "app/eval_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

namespace calla {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Interval& i) {
  return {{"value", i.value}, {"low", i.low}, {"high", i.high}};  // NaN becomes null
}

}  // namespace

Json to_json(const Summary& s) {
  Json out = {{"positions", s.rows}, {"nll", to_json(s.nll)}, {"perplexity", to_json(s.perplexity)}};
  if (s.bits_per_byte) out["bits_per_byte"] = to_json(*s.bits_per_byte);
  if (s.agreement) {
    out["reference_nll"] = to_json(s.agreement->nll);
    out["reference_perplexity"] = to_json(s.agreement->perplexity);
    out["nll_difference"] = to_json(s.agreement->nll_difference);
    out["kl"] = to_json(s.agreement->kl);
    out["kl_p99"] = to_json(s.agreement->kl_p99);
    out["kl_max"] = s.agreement->kl_max;
    out["top1"] = to_json(s.agreement->top1);
    out["top8"] = to_json(s.agreement->top8);
  }
  out["intervals"] = {{"confidence", 0.95}, {"means", kMeanMethod}};
  if (s.agreement) {
    out["intervals"]["kl_p99"] = kQuantileMethod;
    out["intervals"]["top1, top8"] = kShareMethod;
  }
  return out;
}

std::string to_table(const Summary& s) {
  std::string out;
  const auto number = [](double v) { return std::isnan(v) ? std::string("?") : fmt::format("{:.5g}", v); };
  const auto line = [&](std::string_view label, const Interval& i, std::string_view unit = "", double scale = 1) {
    out += fmt::format("{:<24}{:<12} [{}, {}]{}{}\n", label, number(i.value * scale), number(i.low * scale),
                       number(i.high * scale), unit.empty() ? "" : " ", unit);
  };
  line("NLL", s.nll, "nats per token");
  line("perplexity", s.perplexity);
  if (s.bits_per_byte) line("bits per byte", *s.bits_per_byte);
  if (const auto& a = s.agreement) {
    line("reference's perplexity", a->perplexity);
    line("NLL − reference's", a->nll_difference);
    line("KL divergence, mean", a->kl, "nats");
    line("  99th percentile", a->kl_p99);
    out += fmt::format("{:<24}{}\n", "  largest", number(a->kl_max));
    line("same likeliest token", a->top1, "%", 100);
    line("same eight likeliest", a->top8, "%", 100);
  }
  out += fmt::format("{} positions; 95 % intervals of means: {}", s.rows, kMeanMethod);
  if (s.agreement) out += fmt::format("; of the percentile: {}; of shares: {}", kQuantileMethod, kShareMethod);
  return out + "\n";
}

}  // namespace calla
