// RunSetup: everything about a run that is decided before anything is allocated: the run file, the
// machine, the model's units and the plan. Owned by the command; main thread.
#pragma once

#include <memory>
#include <optional>

#include "config/run_config.h"
#include "device/compute_threads.h"
#include "offload/machine.h"
#include "offload/tier_plan.h"
#include "trainer/model_source.h"

namespace longshore {

// Which run: files from first to last, then overrides.
struct RunArguments {
  std::vector<std::string> files;
  std::vector<Override> overrides;
};

struct RunSetup {
  RunConfig config;
  Machine machine;
  ComputeSettings compute;  // in force for the process
  std::unique_ptr<ModelSource> source;
  PlanInputs inputs;

  // Throws DoesNotFitError, with the arithmetic and the keys to change.
  TierPlan plan() const { return make_tier_plan(inputs, machine); }
};

// Reads the run file, looks at the machine, sets LibTorch's threads and opens the model. Throws
// ConfigError or DataError with every problem found.
RunSetup prepare_run(const RunArguments& arguments);

}  // namespace longshore
