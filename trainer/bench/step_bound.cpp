#include "trainer/bench/step_bound.h"

#include <algorithm>
#include <vector>

namespace longshore {
namespace {

// What one lane does in a part of the step.
struct LaneLoad {
  const char* name = "";
  double before = 0.0;  // the least it waits for its first operation
  double busy = 0.0;
  double after = 0.0;  // the least that follows its last operation
};

const LaneLoad& busiest(const std::vector<LaneLoad>& lanes) {
  return *std::ranges::max_element(lanes, {}, &LaneLoad::busy);
}

double filled(const std::vector<LaneLoad>& lanes) {
  double most = 0.0;
  for (const LaneLoad& lane : lanes) most = std::max(most, lane.before + lane.busy + lane.after);
  return most;
}

}  // namespace

StepBound bound_of(const TimedStepOptions& options) {
  const UnitTimes& t = options.times;
  const double n = options.units;
  const double again = std::max(0.0, n - static_cast<double>(options.prefetch + 1));
  const std::vector<LaneLoad> forward = {
      {"forward", t.update + t.fetch + t.gather, (n - 1) * t.forward, 0.0},
      {"update", 0.0, n * t.update, t.fetch + t.gather},
      {"fetch", t.update, n * t.fetch, t.gather},
      {"gather", t.update + t.fetch, n * t.gather, 0.0},
  };
  std::vector<LaneLoad> backward = {
      {"backward", 0.0, n * t.backward, t.reduce + t.drain},
      {"reduce", t.backward, n * t.reduce, t.drain},
      {"drain", t.backward + t.reduce, n * t.drain, 0.0},
  };
  if (again > 0) {
    const double wait = std::min(t.backward, t.fetch);
    const double last = t.backward + t.reduce + t.drain;
    backward.push_back({"fetch", wait, again * t.fetch, t.gather + last});
    backward.push_back({"gather", wait + t.fetch, again * t.gather, last});
  }
  StepBound bound;
  bound.pure = busiest(forward).busy + busiest(backward).busy;
  bound.filled = filled(forward) + filled(backward);
  bound.wall = std::string(busiest(forward).name) + ", " + busiest(backward).name;
  return bound;
}

}  // namespace longshore
