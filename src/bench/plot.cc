#include "bench/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/progress.h"

namespace calla {
namespace {

// Pixels. A chart's plotting area lies inside its panel, with room for the labels.
constexpr double kPanelWidth = 460, kHeight = 400;
constexpr double kLeft = 80, kRight = 24, kTop = 84, kBottom = 56;

constexpr std::string_view kStyle = R"(<style>
  svg { font: 12px system-ui, sans-serif; }
  .page { fill: #ffffff; } .text { fill: #1f2328; } .quiet { fill: #59636e; } .grid { stroke: #d1d9e0; }
  .ours { stroke: #0969da; fill: #0969da; } .peer { stroke: #bc4c00; fill: #bc4c00; } .ceiling { stroke: #59636e; fill: #59636e; }
  .line { fill: none; stroke-width: 2; } .ceiling.line { stroke-dasharray: 5 4; } .peer.line { stroke-dasharray: 2 3; }
  .hollow { fill: none; stroke-width: 2; } .title { font-size: 14px; font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; } .text { fill: #f0f6fc; } .quiet { fill: #9198a1; } .grid { stroke: #3d444d; }
    .ours { stroke: #4493f8; fill: #4493f8; } .peer { stroke: #db6d28; fill: #db6d28; } .ceiling { stroke: #9198a1; fill: #9198a1; }
    .line, .hollow { fill: none; }
  }
</style>
)";

struct Point {
  int context;
  double rate;
  bool refused = false;
};

struct Series {
  std::string_view css, name;
  bool measured = true;  // has dots; otherwise only a line
  std::vector<Point> points;
};

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        // XML has no place for control characters.
        out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    }
  }
  return out;
}

// 1, 2 or 5 times a power of ten, so that four to nine steps reach `largest`.
double tick_step(double largest) {
  const double power = std::pow(10, std::floor(std::log10(largest)));
  for (const double step : {0.2, 0.5, 1.0}) {
    if (largest / (step * power) <= 8) return step * power;
  }
  return 2 * power;
}

std::string context_label(int context) {
  return context % 1024 == 0 ? fmt::format("{}k", context / 1024) : format_count(context);
}

// One chart with its axes. x is the logarithm of the context.
class Chart {
 public:
  Chart(double left, std::string_view title, std::vector<Series> series)
      : left_(left), title_(title), series_(std::move(series)) {
    for (Series& s : series_) {
      std::erase_if(s.points, [](const Point& p) { return !std::isfinite(p.rate); });
      for (const Point& p : s.points) {
        contexts_.push_back(p.context);
        largest_ = std::max(largest_, p.rate);
      }
    }
    std::ranges::sort(contexts_);
    contexts_.erase(std::ranges::unique(contexts_).begin(), contexts_.end());
  }

  std::string draw() const {
    std::string out =
        fmt::format("<g>\n<text class=\"text title\" x=\"{:.1f}\" y=\"52\">{}</text>\n", left_ + kLeft, escape(title_));
    out += y_axis() + x_axis();
    double legend = left_ + kLeft;
    for (const Series& s : series_) {
      if (s.points.empty()) continue;
      out += draw(s);
      out += fmt::format("<text class=\"{}\" style=\"stroke: none\" x=\"{:.1f}\" y=\"70\">{}</text>\n", s.css, legend,
                         escape(s.name));
      legend += 8.0 * static_cast<double>(s.name.size()) + 12;
    }
    return out + "</g>\n";
  }

 private:
  double x(int context) const {
    const double low = std::log2(contexts_.front()), high = std::log2(contexts_.back());
    const double share = high > low ? (std::log2(context) - low) / (high - low) : 0.5;
    return left_ + kLeft + share * (kPanelWidth - kLeft - kRight);
  }
  double y(double rate) const { return kHeight - kBottom - rate / top() * (kHeight - kTop - kBottom); }
  double top() const {
    const double step = tick_step(largest_);
    return step * std::ceil(largest_ / step);
  }

  std::string y_axis() const {
    std::string out;
    const double step = tick_step(largest_);
    const int ticks = static_cast<int>(std::lround(top() / step));
    for (int i = 0; i <= ticks; ++i) {
      const double at = y(i * step);
      out += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                         left_ + kLeft, left_ + kPanelWidth - kRight, at, at);
      out += fmt::format("<text class=\"quiet\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                         left_ + kLeft - 8, at + 4,
                         step < 1 ? fmt::format("{:g}", i * step) : format_count(std::llround(i * step)));
    }
    const double middle = (kTop + kHeight - kBottom) / 2;
    return out + fmt::format(
                     "<text class=\"quiet\" text-anchor=\"middle\" transform=\"translate({:.1f} {:.1f}) "
                     "rotate(-90)\">tokens a second</text>\n",
                     left_ + 16, middle);
  }

  std::string x_axis() const {
    std::string out;
    double last = -1e9;
    for (const int context : contexts_) {
      // Labels that would touch are left out.
      if (x(context) - last < 34) continue;
      last = x(context);
      out += fmt::format("<text class=\"quiet\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", last,
                         kHeight - kBottom + 18, context_label(context));
    }
    return out + fmt::format(
                     "<text class=\"quiet\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">context, "
                     "tokens</text>\n",
                     left_ + kLeft + (kPanelWidth - kLeft - kRight) / 2, kHeight - kBottom + 38);
  }

  std::string draw(const Series& s) const {
    std::string line, dots;
    for (const Point& p : s.points) {
      line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", x(p.context), y(p.rate));
      if (!s.measured) continue;
      dots += fmt::format(
          "<circle class=\"{}{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{} {}: {:.2f}</title>"
          "</circle>\n",
          s.css, p.refused ? " hollow" : "", x(p.context), y(p.rate), escape(s.name), format_count(p.context), p.rate);
    }
    return fmt::format("<polyline class=\"{} line\" points=\"{}\"/>\n{}", s.css, line, dots);
  }

  double left_;
  std::string_view title_;
  std::vector<Series> series_;
  std::vector<int> contexts_;
  double largest_ = 0;
};

}  // namespace

std::string report_svg(const BenchReport& r) {
  Series ours_decode{"ours", "Calla"}, peer_decode{"peer", "peer"}, top_decode{"ceiling", "ceiling", false};
  Series ours_prefill = ours_decode, peer_prefill = peer_decode, top_prefill = top_decode;
  for (const BenchResult& row : r.results) {
    if (row.row.depth > 0) continue;
    const int context = row.row.prompt;
    const bool refused = !row.summary.refused.empty();
    const PeerRates peer = peer_rates(r.peer_tests, row.row);
    ours_decode.points.push_back({context, row.summary.decode_rate, refused});
    ours_prefill.points.push_back({context, row.summary.prefill_rate, refused});
    top_decode.points.push_back({context, row.decode_ceiling(r.ceilings)});
    top_prefill.points.push_back({context, row.prefill_ceiling(r.ceilings)});
    if (peer.decode > 0) peer_decode.points.push_back({context, peer.decode});
    if (peer.prefill > 0) peer_prefill.points.push_back({context, peer.prefill});
  }
  CHECK(!ours_decode.points.empty(), "nothing to draw");
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "role=\"img\">\n",
      2 * kPanelWidth, kHeight);
  const std::string title =
      escape(fmt::format("{} on {}, {}, {}", r.model.name, r.machine.processor, r.machine.units(), r.machine.isa));
  out += fmt::format("<title>{}</title>\n{}", title, kStyle);
  out += "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n";
  out += fmt::format("<text class=\"text\" x=\"{:.1f}\" y=\"26\">{}</text>\n", kLeft, title);
  out += Chart(0, "Decode", {top_decode, ours_decode, peer_decode}).draw();
  out += Chart(kPanelWidth, "Prefill", {top_prefill, ours_prefill, peer_prefill}).draw();
  return out + "</svg>\n";
}

}  // namespace calla
