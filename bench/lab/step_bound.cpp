#include "bench/lab/step_bound.h"

#include <algorithm>
#include <vector>

namespace longshore {
namespace {

// The load of one lane in a part of the step.
struct LaneLoad {
  const char* name = "";
  double before = 0.0;  // minimum wait before its first operation
  double busy = 0.0;
  double after = 0.0;  // minimum time after its last operation
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

namespace {

std::vector<LaneLoad> forward_lanes(const TimedStepOptions& options) {
  const UnitTimes& t = options.times;
  const double n = options.units;
  const bool drives = options.state_slots > 0;
  const double read = drives ? t.read_state : 0.0;
  const double fetched = t.fetch + t.gather;
  std::vector<LaneLoad> lanes = {
      {"forward", read + t.update + fetched, (n - 1) * t.forward, 0.0},
      {"update", read, n * t.update, fetched},
      {"fetch", read + t.update, n * t.fetch, t.gather},
      {"gather", read + t.update + t.fetch, n * t.gather, 0.0},
  };
  if (!drives) return lanes;
  lanes.push_back({"read", 0.0, n * read, t.update + fetched});
  // The last unit's state waits for a free slot.
  const double freed = std::max(0.0, n - options.state_slots);
  lanes.push_back({"write", read + t.update, freed * t.write_state, read + t.update + fetched});
  return lanes;
}

// Returns the number of units that no device slot kept from forward.
double fetched_again(const TimedStepOptions& options) {
  return std::max(0.0, options.units - static_cast<double>(options.prefetch + 1));
}

// Returns the seconds after the last unit's fetch in backward.
double last_of_backward(const UnitTimes& t) {
  return t.gather + t.backward + t.reduce + t.drain;
}

std::vector<LaneLoad> backward_lanes(const TimedStepOptions& options) {
  const UnitTimes& t = options.times;
  const double n = options.units;
  const double again = fetched_again(options);
  std::vector<LaneLoad> lanes = {
      {"backward", 0.0, n * t.backward, t.reduce + t.drain},
      {"reduce", t.backward, n * t.reduce, t.drain},
      {"drain", t.backward + t.reduce, n * t.drain, 0.0},
  };
  if (again == 0.0) return lanes;
  const double wait = std::min(t.backward, t.fetch);
  const double last = last_of_backward(t);
  lanes.push_back({"fetch", wait, again * t.fetch, last});
  lanes.push_back({"gather", wait + t.fetch, again * t.gather, last - t.gather});
  if (options.parameter_slots == 0) return lanes;
  const double read = std::max(0.0, again - options.parameter_slots) * t.read_parameters;
  lanes.push_back({"read", 0.0, read, t.fetch + last});
  return lanes;
}

// Returns the loads of drive lanes over the whole step.
std::vector<LaneLoad> whole_lanes(const TimedStepOptions& options) {
  const UnitTimes& t = options.times;
  const double n = options.units;
  if (options.state_slots == 0) return {{}};
  std::vector<LaneLoad> lanes = {
      {"write", t.read_state + t.update, n * t.write_state + t.commit, 0.0}};
  const double again = fetched_again(options);
  if (options.parameter_slots == 0 || again == 0.0) return lanes;
  lanes.push_back(
      {"read", 0.0, n * t.read_state + again * t.read_parameters, t.fetch + last_of_backward(t)});
  return lanes;
}

}  // namespace

StepBound bound_of(const TimedStepOptions& options) {
  const std::vector<LaneLoad> forward = forward_lanes(options);
  const std::vector<LaneLoad> backward = backward_lanes(options);
  const std::vector<LaneLoad> whole = whole_lanes(options);
  StepBound bound;
  bound.pure = busiest(forward).busy + busiest(backward).busy;
  bound.filled = filled(forward) + filled(backward);
  bound.wall = std::string(busiest(forward).name) + ", " + busiest(backward).name;
  if (busiest(whole).busy > bound.pure) bound.wall = busiest(whole).name;
  bound.pure = std::max(bound.pure, busiest(whole).busy);
  bound.filled = std::max(bound.filled, filled(whole));
  return bound;
}

}  // namespace longshore
