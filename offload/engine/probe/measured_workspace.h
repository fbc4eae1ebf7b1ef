// MeasuredWorkspace: memory that each unit needs beyond the engine's buffers, measured by running
// every distinct unit (see [Note: measured workspace] in model/unit.h). It serves all plans of a
// run. Made by one thread before the plan; a value afterwards.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "offload/engine/probe/gpu_scratch.h"
#include "offload/engine/probe/unit_probe.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

struct ProbeOptions {
  ProbeDevice device = {};
  bool elsewhere = false;    // the run's device is not installed: costs are estimates
  int threads = 1;           // compute threads of the process
  MicroBatchShape run = {};  // the run's largest micro-batch
  WholeShape whole = WholeShape::kWhereSeconds;
  // Host memory that the probe may use. A unit that needs more cannot run either, so it is skipped.
  Bytes memory = std::numeric_limits<Bytes>::max();
  // The directory for measurements and the identity of this program; empty: no cache.
  std::string cache = {};
  std::string program = {};
  // Called with the unit's name when its run has taken two seconds, on the caller's thread.
  std::function<void(const std::string&)> on_slow = {};
};

class MeasuredWorkspace {
 public:
  MeasuredWorkspace(const Model& model, const ProbeOptions& options);

  // Returns the costs; the function outlives this object and the model.
  UnitCosts costs() const;

  // text() is this rank's measurements; take_largest() replaces them with the maxima over all
  // ranks, whose model and options must be equal.
  std::string text() const;
  void take_largest(const std::vector<std::string>& texts);

  // Number of distinct units that were run and the seconds that took; the others were cached.
  int units_run() const { return units_run_; }
  double seconds() const { return seconds_; }

 private:
  struct Distinct {
    UnitId unit;
    UnitWork work;
    GpuWork gpu;
    std::vector<ProbeSample> samples;  // empty: it was not run
    Bytes gradients = 0;               // of its parameters, in the compute dtype
  };
  void measure(const Model& model, Distinct& distinct, const std::string& identity);

  ProbeOptions options_;
  std::vector<Distinct> distinct_;
  std::vector<size_t> of_unit_;  // by unit: index into distinct_
  int units_run_ = 0;
  double seconds_ = 0.0;
};

// Measures a custom model without a cache.
UnitCosts unit_costs(const Model& model, DType compute, int threads, const MicroBatchShape& run);

}  // namespace longshore
