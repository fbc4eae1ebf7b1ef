// PlanCheck: compares a run's first steps with their forecast: the error, the lane whose rate has
// the largest error, and the corrections for the next plan of such a run. Owned by the run's first
// rank; one thread.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "offload/forecast/step_forecast.h"

namespace longshore {

class PlanCheck {
 public:
  // `used` are the corrections in the forecast.
  PlanCheck(StepForecast planned, LaneFactors used);

  // Adds a step's seconds and each lane's busy seconds; ignores the first step, which allocates.
  void add(double seconds, const std::array<double, kLaneCount>& busy);
  bool complete() const;

  // Returns the median over the added steps.
  double measured_seconds() const;
  // Returns the lane whose busy time differs most from the plan.
  Lane blamed() const;
  // Returns corrections by lane: measured time over the time by rate. Idle lanes keep theirs.
  LaneFactors factors() const;
  // Returns "planned 12.4 s a step, measured 13.1 s (6 % more); largest error: the compute lane,
  // ...".
  std::string text() const;

 private:
  double measured(size_t lane) const;

  StepForecast planned_;
  LaneFactors used_;
  int steps_ = 0;
  std::vector<double> seconds_;
  std::array<std::vector<double>, kLaneCount> busy_;
};

}  // namespace longshore
