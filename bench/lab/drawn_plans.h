// `longshore_lab plans`: compares forecast steps with steps that are run. Compute, links, drives
// and collectives are timers; plan, schedule, ring, streams, events and waits between ranks are
// real. Main thread.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/lab/plan_cases.h"

namespace longshore {

struct LabPlanOptions {
  int32_t plans = 250;
  double step_milliseconds = 400.0;  // forecast time of every plan's step
  int32_t steps = 5;                 // measured, after one warm-up step
  int32_t in_turn = 10;              // plans that are measured together, one step of each per round
  uint32_t seed = 1;
  bool json = false;
};

struct PlanFigures {
  CaseChoice choice = {};
  size_t operations = 0;  // of a step, on one rank
  double planned = 0.0;   // seconds
  double measured = 0.0;  // median of the steps
  double fastest = 0.0, slowest = 0.0;

  double off() const { return measured / planned - 1.0; }
};

std::vector<PlanFigures> measure_plans(const LabPlanOptions& options, const CaseCover& cover);

int run_lab_plans(const LabPlanOptions& options);

}  // namespace longshore
