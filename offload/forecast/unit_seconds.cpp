#include "offload/forecast/unit_seconds.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {
namespace {

struct Point {
  double positions = 0.0;
  double seconds = 0.0;  // per position
};

double seconds_at(const Point& low, const Point& high, double positions) {
  const double least = low.positions * low.seconds, most = high.positions * high.seconds;
  const double slope = (most - least) / (high.positions - low.positions);
  const double start = least - slope * low.positions;
  const bool sound = start >= 0.0 && slope > 0.0;
  const double at = sound ? positions : std::clamp(positions, low.positions, high.positions);
  return start / at + slope;
}

}  // namespace

UnitSeconds unit_seconds(const std::vector<UnitPoint>& points, int64_t positions) {
  LONGSHORE_CHECK(!points.empty() && positions > 0) << points.size() << " " << positions;
  const UnitPoint &low = points.front(), &high = points.back();
  if (low.positions == high.positions) return low.seconds;
  const auto at = [&](double UnitSeconds::* pass) {
    return seconds_at({static_cast<double>(low.positions), low.seconds.*pass},
                      {static_cast<double>(high.positions), high.seconds.*pass},
                      static_cast<double>(positions));
  };
  return {at(&UnitSeconds::forward), at(&UnitSeconds::backward)};
}

}  // namespace longshore
