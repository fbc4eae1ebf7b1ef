#include "trainer/metrics/terminal_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

namespace longshore {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

size_t characters(const std::string& utf8) {
  size_t count = 0;
  for (const char c : utf8) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

// A falling series goes from the upper left to the lower right.
TEST(TerminalPlot, DrawsAFallingSeriesFromTheUpperLeftToTheLowerRight) {
  std::vector<double> values;
  for (int i = 0; i < 500; ++i) values.push_back(5.0 - 0.01 * i);
  const auto lines = lines_of(
      plot_series(values, {.columns = 40, .rows = 5, .style = PlotStyle::kAscii, .title = "loss"}));
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0], "loss");
  EXPECT_EQ(lines[1].find('*'), 10u);
  EXPECT_EQ(lines[5].find_last_of('*'), 39u);
  EXPECT_EQ(lines[6], "          1" + std::string(26, ' ') + "500");
}

// A Braille plot has the requested width.
TEST(TerminalPlot, ABrailleLineIsAsWideAsAsked) {
  std::vector<double> values;
  for (int i = 0; i < 300; ++i) values.push_back(std::sin(i * 0.05));
  const auto lines = lines_of(plot_series(values, {.columns = 60, .rows = 8}));
  ASSERT_EQ(lines.size(), 9u);
  for (const std::string& line : lines) EXPECT_LE(characters(line), 60u);
  EXPECT_NE(lines[0].find("\xe2\xa0"), std::string::npos);  // U+2800 to U+283F
}

// Two points in Braille are drawn as a stroke from corner to corner.
TEST(TerminalPlot, TwoPointsInBrailleAreTheFourCornersDots) {
  const auto lines =
      lines_of(plot_series(std::vector<double>{1.0, 0.0}, {.columns = 24, .rows = 2}));
  // Seven of 14 cells have the upper dots and seven the lower ones; a stroke joins them.
  std::string upper, lower;
  for (int i = 0; i < 7; ++i) upper += "⠉", lower += i == 0 ? "⣇" : "⣀";
  EXPECT_NE(lines[0].find(upper), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find(lower), std::string::npos) << lines[1];
}

// Values that are not finite leave gaps, and no input fails.
TEST(TerminalPlot, LeavesGapsForWhatIsNotFiniteAndNeverFails) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (const PlotStyle style : {PlotStyle::kAscii, PlotStyle::kBraille}) {
    const PlotOptions options{.columns = 30, .rows = 3, .style = style};
    for (const std::vector<double>& values : {std::vector<double>{},
                                              {nan},
                                              {1.0},
                                              {2.0, 2.0, 2.0},
                                              {1.0, nan, inf, -inf, 3.0},
                                              {1e308, -1e308},
                                              {5e-324, 0.0}}) {
      EXPECT_EQ(lines_of(plot_series(values, options)).size(), 4u);
    }
  }
  const std::string gaps = plot_series(std::vector<double>{1.0, nan, 1.0},
                                       {.columns = 31, .rows = 3, .style = PlotStyle::kAscii});
  EXPECT_NE(gaps.find("*******       *******"), std::string::npos) << gaps;
}

}  // namespace
}  // namespace longshore
