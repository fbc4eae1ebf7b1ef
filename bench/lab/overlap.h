// `longshore_lab overlap`: how close the schedule and its executor come to the roofline. Compute,
// copies, collectives and updates are timers; schedule, ring, streams and events are the real ones.
// Main thread.
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
  int32_t steps = 5;               // measured, after one that is not
  bool peers = false;              // FSDP2's and DeepSpeed's schedules too
  bool simulate = false;           // no timers: what an executor without cost would take
  bool json = false;
};

// What the lanes take, as shares of what compute takes beside them.
struct OverlapPoint {
  int32_t ranks = 1;
  double fetch = 1.0;     // fetch / forward; a gather takes as long as a fetch
  double update = 1.0;    // update / forward
  double gradient = 1.0;  // (reduction + drain) / backward, half each; one rank: drain / backward
  // Of drives, / forward; none: state, or parameters, are in host memory.
  std::optional<double> read_state = {}, write_state = {}, read_parameters = {};
};

// Backward is three times forward: recompute, and gradients of inputs and of weights.
TimedStepOptions step_options(const LabOverlapOptions& options, const OverlapPoint& point);

// Seconds of a step.
struct StepSeconds {
  double simulated = 0.0;          // by an executor that costs nothing
  std::optional<double> measured;  // median of the steps; none: not run

  double best_known() const { return measured.value_or(simulated); }
};

struct OverlapFigures {
  OverlapPoint point;
  StepBound bound;
  StepSeconds step;
};

// Every combination of the ratios, at every number of ranks.
std::vector<OverlapFigures> measure_overlap(const LabOverlapOptions& options);

// measure_overlap with state on drives, and parameters there too, which are read in a quarter of
// the state's time (split-bf16: 2 of 8 bytes): every combination of what reads and writes of
// state take, the other lanes alike at a quarter of compute, at it, and at four times that. The
// step's commit takes what the write of a unit does.
std::vector<OverlapFigures> measure_drives(const LabOverlapOptions& options);

// What deferred updates cost a step: with them, and with updates that take no time. Copies and
// gradients take half of what compute takes.
struct UpdateFigures {
  int32_t ranks = 1;
  double update = 0.0;          // update / forward
  double update_seconds = 0.0;  // of all units
  StepSeconds with;
  StepSeconds without;

  double exposed() const { return with.best_known() - without.best_known(); }
};
std::vector<UpdateFigures> measure_updates(const LabOverlapOptions& options);

// Our times under the peers' schedules, all ratios alike; then with the bytes that the peers
// move: FSDP2 copies fp32 parameters and gradients (twice ours), DeepSpeed brings gradients over
// the link in 8 bytes a parameter (ours: 2) and updates with 42 bytes of memory traffic (ours: 28).
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
