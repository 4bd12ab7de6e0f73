#include "apps/eval/figures/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "apps/eval/figures/paper.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

constexpr double kLeft = 90, kTop = 40, kBottom = 50, kRight = 20, kCell = 22, kWidth = 420, kHeight = 280;

std::string text_at(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escaped(text));
}

// White to dark blue.
std::string colour(double value, double low, double high) {
  if (std::isnan(value)) return "#ffffff";
  const double share = std::clamp((value - low) / std::max(high - low, 1e-12), 0.0, 1.0);
  const auto mix = [&](int from, int to) { return std::lround(from + share * (to - from)); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(0xf2, 0x08), mix(0xf6, 0x30), mix(0xfb, 0x6b));
}

std::string map_svg(const HeatMap& m, double x0) {
  std::string svg = text_at(x0 + kLeft, 18, "start", fmt::format("{} ({:.2g} to {:.2g})", m.title, m.low, m.high));
  for (std::int32_t r = 0; r < std::ssize(m.rows); ++r) {
    const double y = kTop + kCell * r;
    svg += text_at(x0 + kLeft - 6, y + 15, "end", m.rows[r]);
    for (std::int32_t c = 0; c < std::ssize(m.columns); ++c)
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{:.4g}</title></rect>\n",
          x0 + kLeft + kCell * c, y, kCell, kCell, colour(m.at(r, c), m.low, m.high), m.at(r, c));
  }
  const double bottom = kTop + kCell * size32(m.rows);
  for (std::int32_t c = 0; c < std::ssize(m.columns); ++c)
    svg += text_at(x0 + kLeft + kCell * (c + 0.5), bottom + 14, "middle", m.columns[c]);
  svg += text_at(x0 + kLeft + kCell * size32(m.columns) / 2, bottom + 32, "middle", m.x_title);
  return svg + text_at(x0 + kLeft - 6, kTop - 8, "end", m.y_title);
}

struct Bounds {
  double x_low = 1e300, x_high = -1e300, y_low = 1e300, y_high = -1e300;
};

Bounds bounds_of(const LineChart& chart) {
  Bounds b;
  for (const Series& s : chart.series)
    for (const auto& [x, y] : s.points) {
      b.x_low = std::min(b.x_low, x), b.x_high = std::max(b.x_high, x);
      b.y_low = std::min(b.y_low, y), b.y_high = std::max(b.y_high, y);
    }
  if (b.x_low > b.x_high) return {0, 1, 0, 1};
  if (b.x_high == b.x_low) b.x_high = b.x_low + 1;
  if (b.y_high == b.y_low) b.y_high = b.y_low + 1;
  return b;
}

constexpr std::string_view kSeriesColours[] = {"#1b6ca8", "#c8553d", "#3c8d40", "#8e5ea2",
                                               "#b8860b", "#7a7a7a", "#d1478c", "#2aa198"};

std::string chart_svg(const LineChart& chart, double x0) {
  const Bounds b = bounds_of(chart);
  const auto x = [&](double v) {
    return x0 + kLeft + (kWidth - kLeft - kRight) * (v - b.x_low) / (b.x_high - b.x_low);
  };
  const auto y = [&](double v) {
    return kHeight - kBottom - (kHeight - kBottom - kTop) * (v - b.y_low) / (b.y_high - b.y_low);
  };
  std::string svg = text_at(x0 + kLeft, 18, "start", chart.title);
  for (int i = 0; i <= 4; ++i) {
    const double at_y = b.y_low + (b.y_high - b.y_low) * i / 4, at_x = b.x_low + (b.x_high - b.x_low) * i / 4;
    svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" class=\"rule\"/>\n",
                       x0 + kLeft, x0 + kWidth - kRight, y(at_y));
    svg += text_at(x0 + kLeft - 6, y(at_y) + 4, "end", fmt::format("{:.3g}", at_y));
    svg += text_at(x(at_x), kHeight - kBottom + 15, "middle", fmt::format("{:.4g}", at_x));
  }
  svg += text_at(x0 + (kLeft + kWidth - kRight) / 2, kHeight - 14, "middle", chart.x_title);
  svg += text_at(x0 + kLeft - 6, kTop - 8, "end", chart.y_title);
  for (std::int32_t i = 0; i < std::ssize(chart.series); ++i) {
    const Series& s = chart.series[i];
    const std::string_view stroke = kSeriesColours[i % std::size(kSeriesColours)];
    std::string line;
    for (const auto& [px, py] : s.points) {
      line += fmt::format("{:.1f},{:.1f} ", x(px), y(py));
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"/>\n", x(px), y(py),
                         chart.lines ? 2.5 : 1.2, stroke);
    }
    if (chart.lines) svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" points=\"{}\"/>\n", stroke, line);
    if (!s.points.empty() && chart.series.size() > 1)
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"{}\">{}</text>\n",
                         x0 + kWidth - kRight, kTop + 12 * i, stroke, escaped(s.name));
  }
  return svg;
}

}  // namespace

std::string heat_map_svg(const std::vector<HeatMap>& maps) {
  std::string content;
  double x0 = 0, height = 0;
  for (const HeatMap& m : maps) {
    content += map_svg(m, x0);
    x0 += kLeft + kCell * std::max<double>(size32(m.columns), 8.0) + kRight + 60;
    height = std::max(height, kTop + kBottom + kCell * size32(m.rows));
  }
  return svg_page(x0, height, content);
}

std::string bar_chart_svg(const BarChart& chart) {
  constexpr double kNames = 220, kBars = 520, kBar = 18, kStep = 28, kLegend = 40;
  double longest = 1e-12;
  for (std::int32_t r = 0; r < std::ssize(chart.rows); ++r) {
    double sum = 0;
    for (const double v : chart.values[r]) sum += v;
    longest = std::max({longest, sum, chart.marks.empty() ? 0.0 : chart.marks[r]});
  }
  const auto x = [&](double v) { return kNames + kBars * v / longest; };
  std::string svg = text_at(kNames, 18, "start", chart.title);
  double at = kNames;
  for (std::int32_t p = 0; p < std::ssize(chart.parts); ++p) {
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"26\" width=\"9\" height=\"9\" fill=\"{}\"/>\n", at,
                       kSeriesColours[p % std::size(kSeriesColours)]);
    svg += text_at(at + 12, 35, "start", chart.parts[p]);
    at += 12 + text_width(chart.parts[p]) + 12;
  }
  for (std::int32_t r = 0; r < std::ssize(chart.rows); ++r) {
    const double y = kTop + kLegend / 4 + kStep * r;
    svg += text_at(kNames - 6, y + 13, "end", chart.rows[r]);
    double from = 0;
    for (std::int32_t p = 0; p < std::ssize(chart.parts); ++p) {
      const double v = chart.values[r][p];
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{}: "
          "{:.4g}</title></rect>\n",
          x(from), y, x(from + v) - x(from), kBar, kSeriesColours[p % std::size(kSeriesColours)],
          escaped(chart.parts[p]), v);
      from += v;
    }
    svg += text_at(x(from) + 4, y + 13, "start", fmt::format("{:.3g}", from));
    if (!chart.marks.empty())
      svg += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" class=\"mark\" stroke-width=\"2\"/>\n",
          x(chart.marks[r]), y - 3, y + kBar + 3);
  }
  const double height = kTop + kLegend / 4 + kStep * size32(chart.rows) + 24;
  svg += text_at(kNames, height - 8, "start", chart.x_title);
  return svg_page(kNames + kBars + 60, height, svg);
}

std::string line_chart_svg(const std::vector<LineChart>& charts) {
  std::string content;
  for (std::int32_t i = 0; i < std::ssize(charts); ++i) content += chart_svg(charts[i], kWidth * i);
  return svg_page(kWidth * std::max(size32(charts), 1), kHeight, content);
}

}  // namespace mneme::eval
