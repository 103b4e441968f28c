#pragma once

// Prometheus' text format, version 0.0.4.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calla {

// Writes one exposition.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string>>;
  // Begins a family; its samples follow. `type`: counter, gauge or histogram.
  void family(std::string_view name, std::string_view type, std::string_view help);
  // `suffix`: "" or, of histograms, "_bucket", "_sum", "_count".
  void sample(double value, const Labels& labels = {}, std::string_view suffix = "");
  const std::string& text() const { return text_; }

 private:
  std::string text_, name_;
};

// How often and how long, by an upper bound each. Not thread-safe.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void add(double value);
  void write(MetricsText& out, const MetricsText::Labels& labels = {}) const;

 private:
  std::vector<double> bounds_;  // ascending
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

// What the server counts of its requests. Thread-safe.
class RequestMetrics {
 public:
  // `route`: the path of an endpoint, or "other"; never text of the client.
  void request(std::string_view route, int status, double seconds);
  void first_token(double seconds);            // from the request to the first piece of the answer
  void decode_rate(double tokens_per_second);  // of one answer
  void prompt_rate(double tokens_per_second);  // of the tokens of one prompt that were not cached
  void write(MetricsText& out) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> requests_;
  Histogram seconds_{{0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300}};
  Histogram first_{{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}};
  Histogram decode_{{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000}};
  Histogram prompt_{{10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000}};
};

}  // namespace calla
