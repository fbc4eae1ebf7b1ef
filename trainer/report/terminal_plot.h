// TerminalPlot: a small picture of a series (a loss curve) made of text. Pure functions.
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
  int columns = 72;  // of the whole picture, labels included; at least 24
  int rows = 10;     // of the drawing area; at least 2
  PlotStyle style = PlotStyle::kBraille;
  std::string_view title = "";  // above the picture; empty = none
  int64_t first_index = 1;      // what the first value's place is called under the picture
};

// A line through values[0], values[1], ...; where there are more values than places, a place shows
// their mean. Values that are not finite leave a gap. Lines end in '\n'.
std::string plot_series(std::span<const double> values, const PlotOptions& options);

// Braille where stdout is a terminal that can be expected to show it, else plain ASCII.
PlotStyle plot_style_of_stdout();

}  // namespace longshore
