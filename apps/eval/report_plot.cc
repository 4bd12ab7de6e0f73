// The plot of a report, as SVG.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "apps/eval/figures/paper.h"
#include "apps/eval/report.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

// One method at one length of the plot: KiB a step, and exact answers in percent, means over tasks.
struct PlotPoint {
  std::string method;
  double kib = 0, exact = 0;
  int n = 0;
};
struct PlotPanel {
  std::string title;
  std::vector<PlotPoint> points;
};

// The element of `all` that `is` holds for, or `fresh`, appended.
template <typename T, typename F>
T& find_or_add(std::vector<T>& all, F&& is, T fresh) {
  const auto at = std::find_if(all.begin(), all.end(), is);
  return at != all.end() ? *at : all.emplace_back(std::move(fresh));
}

// The panels, with the means of their methods over values of the same name.
std::vector<PlotPanel> plot_panels(const std::vector<PlotValue>& values) {
  std::vector<PlotPanel> panels;
  for (const PlotValue& v : values) {
    PlotPanel& panel = find_or_add(panels, [&](const PlotPanel& p) { return p.title == v.panel; }, {.title = v.panel});
    PlotPoint& point =
        find_or_add(panel.points, [&](const PlotPoint& p) { return p.method == v.method; }, {.method = v.method});
    point.kib += v.kib;
    point.exact += v.percent;
    ++point.n;
  }
  for (PlotPanel& panel : panels)
    for (PlotPoint& p : panel.points) {
      p.kib /= p.n;
      p.exact /= p.n;
    }
  return panels;
}

// KiB at the ends of the x axis, powers of two.
struct PlotRange {
  double low = 1e300, high = 0;
};
PlotRange plot_range(const std::vector<PlotPanel>& panels) {
  PlotRange r;
  for (const PlotPanel& panel : panels)
    for (const PlotPoint& p : panel.points) {
      r.low = std::min(r.low, std::max(p.kib, 1.0));
      r.high = std::max(r.high, p.kib);
    }
  r.low = std::pow(2, std::floor(std::log2(r.low)));
  r.high = std::max(r.low * 2, std::pow(2, std::ceil(std::log2(std::max(r.high, 1.0)))));
  return r;
}

constexpr double kPlotWidth = 460, kPlotHeight = 320;  // of a panel

// Where the i-th panel draws.
struct PlotArea {
  PlotArea(std::int32_t i, const PlotRange& r)
      : x0(kPlotWidth * i + kLeft), x1(kPlotWidth * (i + 1) - kRight), range(r) {}

  double x(double kib) const {
    return x0 + (x1 - x0) * std::log2(std::max(kib, range.low) / range.low) / std::log2(range.high / range.low);
  }
  double y(double exact) const { return y0 - (y0 - y1) * exact / 100; }

  static constexpr double kLeft = 56, kBottom = 44, kTop = 34, kRight = 16;
  double x0, x1;
  double y0 = kPlotHeight - kBottom, y1 = kTop;
  PlotRange range;
};

std::string plot_axes(const PlotArea& a, const std::string& title) {
  std::string svg = fmt::format("<text x=\"{}\" y=\"18\" font-size=\"13\">{}</text>\n", a.x0, escaped(title));
  for (int tick = 0; tick <= 100; tick += 25)
    svg += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\" class=\"rule\"/><text x=\"{3}\" y=\"{4}\" "
        "text-anchor=\"end\">{5} %</text>\n",
        a.x0, a.x1, a.y(tick), a.x0 - 6, a.y(tick) + 4, tick);
  for (double kib = a.range.low; kib <= a.range.high * 1.01; kib *= 2)
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n", a.x(kib), a.y0 + 15, kib);
  return svg + fmt::format(
                   "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">KiB of keys, values and index read a step</text>\n",
                   (a.x0 + a.x1) / 2, kPlotHeight - 10);
}

std::string plot_points(const PlotArea& a, const std::vector<PlotPoint>& points) {
  constexpr std::string_view kColours[] = {"#1b6ca8", "#c8553d", "#3c8d40", "#8e5ea2",
                                           "#b8860b", "#7a7a7a", "#d1478c", "#2aa198"};
  std::string svg;
  std::int32_t colour = 0;
  for (const PlotPoint& p : points) {
    svg += fmt::format(
        "<circle cx=\"{0}\" cy=\"{1}\" r=\"4\" fill=\"{2}\"/><text x=\"{3}\" y=\"{4}\" fill=\"{2}\">{5}</text>\n",
        a.x(p.kib), a.y(p.exact), kColours[colour % std::size(kColours)], a.x(p.kib) + 6,
        a.y(p.exact) + 4 + 11 * (colour % 3), escaped(p.method));
    ++colour;
  }
  return svg;
}

}  // namespace

std::string plot_svg(const std::vector<CellSummary>& cells) {
  std::vector<PlotValue> values;
  for (const CellSummary& c : cells)
    if (c.n > 0)
      values.push_back({fmt::format("{} tokens of context", c.length), c.method, kib_per_step(c.cost), c.exact()});
  return plot_svg(values);
}

std::string plot_svg(const std::vector<PlotValue>& values) {
  const std::vector<PlotPanel> panels = plot_panels(values);
  const PlotRange range = plot_range(panels);
  std::string svg;
  for (std::int32_t i = 0; i < std::ssize(panels); ++i) {
    const PlotArea area(i, range);
    svg += plot_axes(area, panels[i].title) + plot_points(area, panels[i].points);
  }
  return svg_page(kPlotWidth * std::max(size32(panels), 1), kPlotHeight, svg);
}

}  // namespace mneme::eval
