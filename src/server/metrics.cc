#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace calla {

void MetricsText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void MetricsText::sample(double value, const Labels& labels, std::string_view suffix) {
  text_ += name_;
  text_ += suffix;
  if (!labels.empty()) {
    char open = '{';
    for (const auto& [name, text] : labels) {
      text_ += fmt::format("{}{}=\"", open, name);
      for (const char c : text) {
        if (c == '\\' || c == '"') text_ += '\\';
        c == '\n' ? text_ += "\\n" : text_ += c;
      }
      text_ += '"';
      open = ',';
    }
    text_ += '}';
  }
  text_ += fmt::format(" {}\n", value);
}

void Histogram::add(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(at - bounds_.begin())];
  sum_ += value;
}

void Histogram::write(MetricsText& out, const MetricsText::Labels& labels) const {
  MetricsText::Labels with_bound = labels;
  with_bound.emplace_back("le", "");
  uint64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    with_bound.back().second = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out.sample(static_cast<double>(total), with_bound, "_bucket");
  }
  out.sample(sum_, labels, "_sum");
  out.sample(static_cast<double>(total), labels, "_count");
}

void RequestMetrics::request(std::string_view route, int status, double seconds) {
  const std::scoped_lock lock(mutex_);
  ++requests_[{std::string(route), status}];
  seconds_.add(seconds);
}

void RequestMetrics::first_token(double seconds) {
  const std::scoped_lock lock(mutex_);
  first_.add(seconds);
}

void RequestMetrics::decode_rate(double tokens_per_second) {
  const std::scoped_lock lock(mutex_);
  decode_.add(tokens_per_second);
}

void RequestMetrics::prompt_rate(double tokens_per_second) {
  const std::scoped_lock lock(mutex_);
  prompt_.add(tokens_per_second);
}

void RequestMetrics::write(MetricsText& out) const {
  const std::scoped_lock lock(mutex_);
  out.family("calla_http_requests_total", "counter", "Requests answered, by endpoint and status.");
  for (const auto& [key, count] : requests_) {
    out.sample(static_cast<double>(count), {{"route", key.first}, {"status", fmt::format("{}", key.second)}});
  }
  out.family("calla_http_request_seconds", "histogram", "Time from a request to the end of its answer.");
  seconds_.write(out);
  out.family("calla_first_token_seconds", "histogram", "Time from a request to the first piece of its answer.");
  first_.write(out);
  out.family("calla_decode_tokens_per_second", "histogram", "Speed of each answer after its first token.");
  decode_.write(out);
  out.family("calla_prompt_tokens_per_second", "histogram",
             "Speed of reading the part of a prompt that was not cached.");
  prompt_.write(out);
}

}  // namespace calla
