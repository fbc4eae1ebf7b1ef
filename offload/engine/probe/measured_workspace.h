// MeasuredWorkspace: what each unit of a model takes beyond the engine's own buffers, learnt by
// running every distinct one of them (see [Note: measured workspace] in model/unit.h). It serves
// every plan of the run. Made before the plan, by one thread; a value afterwards.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "offload/engine/probe/gpu_scratch.h"
#include "offload/engine/probe/sample_cache.h"
#include "offload/engine/probe/unit_probe.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

struct ProbeOptions {
  ProbeDevice device = {};
  bool elsewhere = false;    // the run's device is another, which is not here: costs are estimates
  int threads = 1;           // compute threads, in force for the process
  MicroBatchShape run = {};  // the run's largest micro-batch
  WholeShape whole = WholeShape::kWhereSeconds;
  // What the probe may hold of the host's memory; a unit that needs more is not run, because
  // neither could a run.
  Bytes memory = std::numeric_limits<Bytes>::max();
  // Where to keep what was measured, and what tells this program from others; empty: nowhere.
  std::string cache = {};
  std::string program = {};
};

class MeasuredWorkspace {
 public:
  MeasuredWorkspace(const Model& model, const ProbeOptions& options);

  // Outlives this object and the model.
  UnitCosts costs() const;

  // For ranks: what this one measured, and the larger of all ranks' figures in its place. They must
  // be of the same model and options.
  std::string text() const;
  void take_largest(const std::vector<std::string>& texts);

  // Distinct units that were run, and for how long; the others were known.
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

// For models of one's own: measures, and keeps nothing.
UnitCosts unit_costs(const Model& model, DType compute, int threads, const MicroBatchShape& run);

}  // namespace longshore
