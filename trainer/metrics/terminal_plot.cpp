#include "trainer/metrics/terminal_plot.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/texts.h"

namespace longshore {
namespace {

constexpr int kLabelColumns = 9;  // "  1.2345 " before the axis
constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

// Bits of a braille character's dots by row and column; the character is U+2800 + bits.
constexpr std::array<std::array<uint8_t, 2>, 4> kBrailleDots = {
    {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};

struct Range {
  double low = 0.0;
  double high = 1.0;
};

// A grid of dots; (0, 0) is the upper left one.
struct Dots {
  int width = 0;
  int height = 0;
  std::vector<bool> set;

  Dots(int w, int h) : width(w), height(h), set(static_cast<size_t>(w) * static_cast<size_t>(h)) {}
  size_t at(int x, int y) const {
    return static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x);
  }
};

// Returns for each of `places` columns the mean of its finite values, or kGap if it has none.
std::vector<double> resample(std::span<const double> values, int places) {
  std::vector<double> sums(static_cast<size_t>(places), 0.0);
  std::vector<int64_t> counts(static_cast<size_t>(places), 0);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    const size_t place = i * static_cast<size_t>(places) / values.size();
    sums[place] += values[i];
    ++counts[place];
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = counts[i] > 0 ? sums[i] / static_cast<double>(counts[i]) : kGap;
  }
  return sums;
}

Range range_of(std::span<const double> values) {
  Range range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    range.low = std::min(range.low, value);
    range.high = std::max(range.high, value);
  }
  if (range.low > range.high) return {0.0, 1.0};
  // A constant series is drawn as a line in the middle.
  const double least = std::max(std::abs(range.high), 1.0) * 1e-9;
  if (range.high - range.low < least) return {range.low - 0.5, range.high + 0.5};
  return range;
}

int row_of(double value, Range range, int height) {
  // Halves are used because the difference of two large values may overflow.
  const double share = (range.high / 2 - value / 2) / (range.high / 2 - range.low / 2);
  return std::clamp(static_cast<int>(std::lround(share * (height - 1))), 0, height - 1);
}

// Draws a dot for each value and joins neighbours with a vertical stroke.
void draw(std::span<const double> places, Range range, Dots& dots) {
  int former = -1;
  for (int x = 0; x < dots.width; ++x) {
    const double value = places[static_cast<size_t>(x)];
    if (std::isnan(value)) {
      former = -1;
      continue;
    }
    const int row = row_of(value, range, dots.height);
    int from = row;
    if (former >= 0 && former < row) from = former + 1;
    if (former >= 0 && former > row) from = former - 1;
    for (int y = std::min(from, row); y <= std::max(from, row); ++y) dots.set[dots.at(x, y)] = true;
    former = row;
  }
}

std::string utf8(uint32_t code) {  // valid for U+0800 to U+FFFF
  return {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

std::string character(const Dots& dots, int column, int row, PlotStyle style) {
  if (style == PlotStyle::kAscii) return dots.set[dots.at(column, row)] ? "*" : " ";
  uint32_t bits = 0;
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 2; ++x) {
      if (dots.set[dots.at(column * 2 + x, row * 4 + y)]) {
        bits |= kBrailleDots[static_cast<size_t>(y)][static_cast<size_t>(x)];
      }
    }
  }
  return bits == 0 ? " " : utf8(0x2800 + bits);
}

std::string label(double value) {
  return formatted("%*.4g ", kLabelColumns - 1, value);
}

// Returns the line with the first index, 1, on the left and the last index on the right.
std::string index_line(size_t values, int columns) {
  const std::string first = "1";
  const std::string last = std::to_string(std::max<size_t>(values, 1));
  const int gap = columns - static_cast<int>(first.size() + last.size());
  std::string line(kLabelColumns + 1, ' ');
  line += first;
  if (values > 1) line += std::string(static_cast<size_t>(std::max(gap, 1)), ' ') + last;
  return line + "\n";
}

}  // namespace

std::string plot_series(std::span<const double> values, const PlotOptions& options) {
  const bool braille = options.style == PlotStyle::kBraille;
  const int columns = std::max(options.columns, 24) - kLabelColumns - 1;
  const int rows = std::max(options.rows, 2);
  Dots dots(braille ? columns * 2 : columns, braille ? rows * 4 : rows);
  // Fewer values than columns are spread evenly: columns in between repeat the value before them.
  std::vector<double> spread;
  const size_t width = static_cast<size_t>(dots.width);
  for (size_t x = 0; !values.empty() && values.size() < width && x < width; ++x) {
    spread.push_back(values[x * values.size() / width]);
  }
  const std::vector<double> places = resample(spread.empty() ? values : spread, dots.width);
  const Range range = range_of(places);
  draw(places, range, dots);

  std::string text;
  if (!options.title.empty()) text += std::string(options.title) + "\n";
  for (int row = 0; row < rows; ++row) {
    const bool labelled = row == 0 || row == rows - 1;
    text += labelled ? label(row == 0 ? range.high : range.low) : std::string(kLabelColumns, ' ');
    text += braille ? "┤" : "|";
    for (int column = 0; column < columns; ++column) {
      text += character(dots, column, row, options.style);
    }
    text += "\n";
  }
  return text + index_line(values.size(), columns);
}

PlotStyle plot_style_of_stdout() {
  const char* term = std::getenv("TERM");
  const std::string_view name = term == nullptr ? "dumb" : term;
  // The Linux console's font has no braille.
  const bool plain = name == "dumb" || name == "linux" || ::isatty(STDOUT_FILENO) != 1;
  return plain ? PlotStyle::kAscii : PlotStyle::kBraille;
}

}  // namespace longshore
