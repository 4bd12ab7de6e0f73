// Heat maps, lines and points as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace mneme::eval {

struct HeatMap {
  std::string title, x_title, y_title;
  std::vector<std::string> columns, rows;   // labels
  std::vector<std::vector<double>> values;  // by row; NaN is left white
  double low = 0, high = 1;                 // of the colours

  double at(std::size_t row, std::size_t column) const { return values[row][column]; }
};

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct LineChart {
  std::string title, x_title, y_title;
  std::vector<Series> series;
  bool lines = true;  // false: points alone
};

// Bars of stacked parts, one a row.
struct BarChart {
  std::string title, x_title;
  std::vector<std::string> parts;           // names, from left to right
  std::vector<std::string> rows;            // names, from top to bottom
  std::vector<std::vector<double>> values;  // by row, then part; not negative
  std::vector<double> marks;                // by row: a line across the bar; empty: none
};

// Text of any kind is escaped. Requires  rows of values as long as the columns.
std::string heat_map_svg(const std::vector<HeatMap>& maps);
std::string line_chart_svg(const std::vector<LineChart>& charts);
std::string bar_chart_svg(const BarChart& chart);

}  // namespace mneme::eval
