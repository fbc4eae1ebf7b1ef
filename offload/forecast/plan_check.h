// PlanCheck: the first steps of a run against what was planned for them: how far off the plan was,
// which lane's rate is to blame, and what the next plan of such a run should count with. Owned by
// the run's first rank; one thread.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "offload/forecast/step_forecast.h"

namespace longshore {

class PlanCheck {
 public:
  // `used`: the corrections that the forecast was made with.
  PlanCheck(StepForecast planned, LaneFactors used);

  // One step: its seconds, and those that each lane was busy. The first step is left out: it
  // allocates.
  void add(double seconds, const std::array<double, kLaneCount>& busy);
  bool complete() const;

  // Of complete steps: their medians.
  double measured_seconds() const;
  // The lane whose time differs most from what was planned.
  Lane blamed() const;
  // By lane: what it took of what its rate alone says; lanes that do next to nothing keep theirs.
  LaneFactors factors() const;
  // "planned 12.4 s a step, measured 13.1 s (6 % more): computation took 12.6 s, planned 11.9 s".
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
