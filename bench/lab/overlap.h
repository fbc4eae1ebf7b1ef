// `longshore_lab overlap`: compares the schedule and its executor with the roofline. Compute,
// copies, collectives and updates are timers; all else is real. Main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/lab/step_bound.h"

namespace longshore {

struct LabOverlapOptions {
  std::vector<double> ratios = {0.25, 0.5, 1.0, 2.0, 4.0};
  std::vector<int32_t> ranks = {1, 2};
  int32_t units = 24;
  double unit_milliseconds = 3.0;  // forward of a unit
  int64_t prefetch = 0;            // 0: 1 on one rank, 2 on several
  int32_t steps = 5;               // measured, after one warm-up step
  bool peers = false;              // also run FSDP2's and DeepSpeed's schedules
  bool simulate = false;           // simulate an executor without cost; no timers
  bool json = false;
};

// The lanes' durations relative to compute.
struct OverlapPoint {
  int32_t ranks = 1;
  double fetch = 1.0;     // fetch / forward; a gather equals a fetch
  double update = 1.0;    // update / forward
  double gradient = 1.0;  // (reduction + drain) / backward, half each; one rank: drain / backward
  // Drive operations / forward; empty: state or parameters are in host memory.
  std::optional<double> read_state = {}, write_state = {}, read_parameters = {};
};

// Backward takes three times forward: recompute and gradients of inputs and weights.
TimedStepOptions step_options(const LabOverlapOptions& options, const OverlapPoint& point);

// The seconds of a step.
struct StepSeconds {
  double simulated = 0.0;          // for an executor without cost
  std::optional<double> measured;  // median of the steps; empty: not run

  double best_known() const { return measured.value_or(simulated); }
};

struct OverlapFigures {
  OverlapPoint point;
  StepBound bound;
  StepSeconds step;
};

// Measures every combination of the ratios at every number of ranks.
std::vector<OverlapFigures> measure_overlap(const LabOverlapOptions& options);

// Runs measure_overlap with state and parameters on drives. Parameters are read in a quarter of the
// state's time (split-bf16: 2 of 8 bytes). It covers every combination of state read and write
// times, with all other lanes at 1/4, 1 and 4 times compute; a commit takes as long as a unit's
// write.
std::vector<OverlapFigures> measure_drives(const LabOverlapOptions& options);

// The cost of deferred updates: a step with them, and one whose updates take no time. Copies and
// gradients take half of compute.
struct UpdateFigures {
  int32_t ranks = 1;
  double update = 0.0;          // update / forward
  double update_seconds = 0.0;  // of all units
  StepSeconds with;
  StepSeconds without;

  double exposed() const { return with.best_known() - without.best_known(); }
};
std::vector<UpdateFigures> measure_updates(const LabOverlapOptions& options);

// Our times under the baselines' schedules, all ratios equal; then with the baselines' bytes: FSDP2
// copies fp32 parameters and gradients (twice ours), DeepSpeed moves gradients in 8 bytes per
// parameter (ours: 2) and updates with 42 bytes of memory traffic (ours: 28).
struct PeerFigures {
  int32_t ranks = 1;
  double ratio = 1.0;
  StepSeconds longshore;
  StepSeconds fsdp2, fsdp2_bytes;
  StepSeconds deepspeed, deepspeed_bytes;
};
std::vector<PeerFigures> measure_peers(const LabOverlapOptions& options);

int run_lab_overlap(const LabOverlapOptions& options);

}  // namespace longshore
