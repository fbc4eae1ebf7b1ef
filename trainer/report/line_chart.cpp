#include "trainer/report/line_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "base/texts.h"
#include "trainer/report/page.h"

namespace longshore {
namespace {

// Sizes are in SVG units; the page scales them.
constexpr double kWidth = 460.0, kHeight = 230.0;
constexpr double kLeft = 64.0, kRight = 12.0, kTop = 10.0, kBottom = 26.0;
constexpr size_t kMostPoints = 600;  // points drawn per line
constexpr int kBands = 60;           // hover strips

struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  void take(double value) {
    if (!std::isfinite(value)) return;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  bool empty() const { return least > most; }
  double size() const { return most - least; }
};

struct Axes {
  Range x, y;
  double to_x(double value) const {
    return kLeft + (value - x.least) / x.size() * (kWidth - kLeft - kRight);
  }
  double to_y(double value) const {
    return kHeight - kBottom - (value - y.least) / y.size() * (kHeight - kTop - kBottom);
  }
};

std::string text_of(double value, Chart::Unit unit) {
  if (unit == Chart::Unit::kBytes)
    return format_bytes(static_cast<Bytes>(std::llround(std::max(0.0, value))));
  return short_number(value);
}

// Returns 1, 2 or 5 times a power of ten (a power of two for bytes), for about `count` ticks.
double tick_step(double size, double count, Chart::Unit unit) {
  const double wanted = size / count;
  if (unit == Chart::Unit::kBytes) return std::max(1.0, std::exp2(std::ceil(std::log2(wanted))));
  const double power = std::pow(10.0, std::floor(std::log10(wanted)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= wanted) return factor * power;
  }
  return 10.0 * power;
}

// Returns multiples of `step`. The loop counts because `step` may be too small for addition.
std::vector<double> ticks_of(const Range& range, double step) {
  constexpr int kMostTicks = 16;
  std::vector<double> ticks;
  const double first = std::ceil(range.least / step);
  for (int i = 0; i < kMostTicks && (first + i) * step <= range.most; ++i) {
    ticks.push_back((first + i) * step);
  }
  return ticks;
}

Axes axes_of(const Chart& chart) {
  Axes axes;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint& point : line.points) {
      if (!std::isfinite(point.y)) continue;
      axes.x.take(point.x);
      axes.y.take(point.y);
    }
  }
  if (axes.y.empty()) return axes;
  if (chart.from_zero) axes.y.take(0.0);
  if (axes.x.size() == 0.0) axes.x = {axes.x.least - 1.0, axes.x.most + 1.0};
  // A constant line is centred vertically.
  const double margin = axes.y.size() > 0.0  ? 0.04 * axes.y.size()
                        : axes.y.most != 0.0 ? 0.1 * std::abs(axes.y.most)
                                             : 1.0;
  const bool stands_on_zero = chart.from_zero && axes.y.least == 0.0 && axes.y.most > 0.0;
  axes.y = {axes.y.least - (stands_on_zero ? 0.0 : margin), axes.y.most + margin};
  return axes;
}

// Keeps the least and the greatest point of each stretch, and a gap where a stretch has no value.
std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<ChartPoint> kept;
  const size_t stretches = kMostPoints / 2;
  for (size_t s = 0; s < stretches; ++s) {
    const size_t begin = s * points.size() / stretches, end = (s + 1) * points.size() / stretches;
    const ChartPoint* least = nullptr;
    const ChartPoint* most = nullptr;
    for (size_t i = begin; i < end; ++i) {
      const ChartPoint& point = points[i];
      if (!std::isfinite(point.y)) continue;
      if (least == nullptr || point.y < least->y) least = &point;
      if (most == nullptr || point.y > most->y) most = &point;
    }
    if (least == nullptr) {
      kept.push_back({points[begin].x, std::numeric_limits<double>::quiet_NaN()});
      continue;
    }
    kept.push_back(*std::min(least, most));
    if (least != most) kept.push_back(*std::max(least, most));
  }
  return kept;
}

std::string path_of(const ChartLine& line, const Axes& axes) {
  std::string path, dots;
  bool open = false;
  const std::vector<ChartPoint> points = thinned(line.points);
  for (size_t i = 0; i < points.size(); ++i) {
    const ChartPoint& point = points[i];
    if (!std::isfinite(point.y)) {
      open = false;
      continue;
    }
    // A single point between gaps is drawn as a dot, because its path would be invisible.
    if (!open && (i + 1 == points.size() || !std::isfinite(points[i + 1].y))) {
      dots += formatted("<circle cx='%.1f' cy='%.1f' r='3' style='fill:var(--c%zu)'/>",
                        axes.to_x(point.x), axes.to_y(point.y), line.colour);
    }
    path += formatted(open ? "L%.1f %.1f" : "M%.1f %.1f", axes.to_x(point.x), axes.to_y(point.y));
    open = true;
  }
  const char* style = line.style == ChartLine::Style::kFaint    ? " class='faint'"
                      : line.style == ChartLine::Style::kDashed ? " class='dashed'"
                                                                : "";
  return "<path" + std::string(style) + formatted(" style='stroke:var(--c%zu)' d='", line.colour) +
         path + "'/>" + dots;
}

// Returns short axis labels, "128 MiB", with as many digits as tell the ticks apart.
std::vector<std::string> labels_of(const std::vector<double>& ticks, Chart::Unit unit) {
  constexpr int kMostDigits = 15;
  for (int digits = 3;; ++digits) {
    std::vector<std::string> labels;
    for (const double tick : ticks) {
      std::string text =
          unit == Chart::Unit::kBytes ? text_of(tick, unit) : short_number(tick, digits);
      const size_t zero = text.find(".0 ");
      labels.push_back(zero == std::string::npos ? text : text.erase(zero, 2));
    }
    const bool equal = std::ranges::adjacent_find(labels) != labels.end();
    if (!equal || unit == Chart::Unit::kBytes || digits == kMostDigits) return labels;
  }
}

std::string grid_of(const Axes& axes, Chart::Unit unit) {
  std::string svg = "<g class='grid'>";
  const std::vector<double> ticks = ticks_of(axes.y, tick_step(axes.y.size(), 4.0, unit));
  const std::vector<std::string> labels = labels_of(ticks, unit);
  for (size_t i = 0; i < ticks.size(); ++i) {
    const double y = ticks[i];
    svg += formatted("<path d='M%.0f %.1fH%.0f'/><text x='%.0f' y='%.1f' text-anchor='end'>", kLeft,
                     axes.to_y(y), kWidth - kRight, kLeft - 6.0, axes.to_y(y) + 4.0) +
           labels[i] + "</text>";
  }
  const double x_step = std::max(1.0, tick_step(axes.x.size(), 5.0, Chart::Unit::kNumber));
  const std::vector<double> steps = ticks_of(axes.x, x_step);
  const std::vector<std::string> names = labels_of(steps, Chart::Unit::kNumber);
  for (size_t i = 0; i < steps.size(); ++i) {
    svg += formatted("<text x='%.1f' y='%.0f' text-anchor='middle'>", axes.to_x(steps[i]),
                     kHeight - 8.0) +
           names[i] + "</text>";
  }
  // The axis' name begins its row of labels; the first label is centred at kLeft.
  return svg + formatted("<text x='%.0f' y='%.0f' text-anchor='end'>step</text></g>", kLeft - 24.0,
                         kHeight - 8.0);
}

// Returns the point nearest to `x`, or nullptr if the line has none within `reach`.
const ChartPoint* nearest(const ChartLine& line, double x, double reach) {
  const auto after = std::ranges::lower_bound(line.points, x, {}, &ChartPoint::x);
  const ChartPoint* best = nullptr;
  for (auto at = after == line.points.begin() ? after : after - 1;
       at != line.points.end() && at <= after; ++at) {
    if (!std::isfinite(at->y) || std::abs(at->x - x) > reach) continue;
    if (best == nullptr || std::abs(at->x - x) < std::abs(best->x - x)) best = &*at;
  }
  return best;
}

// Returns the hover strips over the picture; each shows the values in it.
std::string bands_of(const Chart& chart, const Axes& axes) {
  std::string svg = "<g class='bands'>";
  const double width = axes.x.size() / kBands;
  for (int band = 0; band < kBands; ++band) {
    const double x = axes.x.least + (band + 0.5) * width;
    std::string text;
    double step = x;
    for (const ChartLine& line : chart.lines) {
      const ChartPoint* point = line.name.empty() ? nullptr : nearest(line, x, width);
      if (point == nullptr) continue;
      step = point->x;
      text += "\n" + line.name + ": " + text_of(point->y, chart.unit);
    }
    if (text.empty()) continue;
    svg += formatted("<rect x='%.1f' y='%.0f' width='%.1f' height='%.0f'><title>step %.0f",
                     axes.to_x(x - width / 2), kTop, axes.to_x(x + width) - axes.to_x(x),
                     kHeight - kTop - kBottom, step) +
           escape_html(text) + "</title></rect>";
  }
  return svg + "</g>";
}

}  // namespace

std::string draw_chart(const Chart& chart) {
  const Axes axes = axes_of(chart);
  if (axes.y.empty()) return "";
  const std::string title = escape_html(chart.title);
  std::string html = "<figure><figcaption>" + title +
                     formatted("</figcaption><svg viewBox='0 0 %.0f %.0f' role='img' aria-label='",
                               kWidth, kHeight) +
                     title + "'>" + grid_of(axes, chart.unit) + "<g class='lines'>";
  for (const ChartLine& line : chart.lines) html += path_of(line, axes);
  return html + "</g>" + bands_of(chart, axes) + "</svg></figure>\n";
}

std::string chart_style() {
  return R"(
:root { --c0: #2563eb; --c1: #d9480f; --c2: #2b8a3e; --c3: #9c36b5; --c4: #0b7285; --c5: #c2255c;
  --c6: #866118; --c7: #495057; }
@media (prefers-color-scheme: dark) { :root { --c0: #74a7ff; --c1: #ff922b; --c2: #69db7c;
  --c3: #da77f2; --c4: #3bc9db; --c5: #f783ac; --c6: #e0b341; --c7: #adb5bd; } }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  gap: 1rem; }
figure { margin: 0; } figcaption { font-size: .9rem; font-weight: 500; padding-left: .3rem; }
figure svg { width: 100%; display: block; }
.grid text { font-size: 12px; fill: currentColor; opacity: .65; }
.grid path { stroke: currentColor; opacity: .13; }
.lines path { fill: none; stroke-width: 1.8; stroke-linecap: round; stroke-linejoin: round; }
.lines .faint { opacity: .3; stroke-width: 1; }
.lines .dashed { stroke-dasharray: 5 4; opacity: .7; }
.bands rect { fill: transparent; } .bands rect:hover { fill: currentColor; fill-opacity: .08; }
)";
}

}  // namespace longshore
