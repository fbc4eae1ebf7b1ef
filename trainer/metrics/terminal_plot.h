// Draws a series (a loss curve) as text. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace longshore {

enum class PlotStyle : uint8_t {
  kBraille,  // 2 x 4 dots per character, UTF-8
  kAscii,    // one star per column
};

struct PlotOptions {
  int columns = 72;  // columns of the whole picture, labels included; at least 24
  int rows = 10;     // rows of the drawing area; at least 2
  PlotStyle style = PlotStyle::kBraille;
  std::string_view title = "";  // a line above the picture; empty = none
};

// Draws a line through the values. If there are more values than horizontal dots, each dot shows a
// mean. Values that are not finite leave a gap. Each line ends in a line feed.
std::string plot_series(std::span<const double> values, const PlotOptions& options);

// Returns kBraille if stdout is a terminal that is likely to show it, otherwise kAscii.
PlotStyle plot_style_of_stdout();

}  // namespace longshore
