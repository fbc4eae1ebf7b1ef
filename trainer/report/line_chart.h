// Lines over steps as inline SVG for HTML pages: axes with round numbers, gaps at
// missing values, values under the pointer. Long series are thinned. Pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longshore {

struct ChartPoint {
  double x = 0.0;
  double y = 0.0;  // NaN: a gap
};

struct ChartLine {
  enum class Style : uint8_t { kSolid, kFaint, kDashed };
  std::string name = {};
  size_t colour = 0;
  Style style = Style::kSolid;
  std::vector<ChartPoint> points = {};
};

struct Chart {
  enum class Unit : uint8_t { kNumber, kBytes };
  std::string title = {};
  Unit unit = Unit::kNumber;
  bool from_zero = false;
  std::vector<ChartLine> lines = {};
};

inline constexpr size_t kChartColours = 8;

// Returns an HTML figure, or an empty string if no line has a value.
std::string draw_chart(const Chart& chart);

// Returns the CSS that a page with charts needs, including the colours --c0 to --c7.
std::string chart_style();

}  // namespace longshore
