// RunSetup: everything about a run that is decided before anything is allocated: the run file, the
// machine, the model's units and the plan. Owned by the command; main thread.
#pragma once

#include <memory>
#include <optional>

#include "config/run_config.h"
#include "device/compute_threads.h"
#include "offload/plan/machine.h"
#include "offload/plan/tier_plan.h"
#include "trainer/model/model_source.h"
#include "trainer/setup/run_ranks.h"

namespace longshore {

// Which run: files from first to last, then overrides.
struct RunArguments {
  std::vector<std::string> files;
  std::vector<Override> overrides;
};

// The ranks, the machine and the weights that a plan is made for without having them.
struct AssumedRanks {
  int32_t ranks = 1;
  int32_t per_node = 1;
  std::optional<Machine> machine = {};  // nothing: this one
  // kOptional: the model's directory may have no weights yet.
  ModelDirectory::Weights weights = ModelDirectory::Weights::kRequired;
};

struct RunSetup {
  RunConfig config;
  std::unique_ptr<RunRanks> ranks;  // null where the command joins no others
  Machine machine;                  // this process's part of it
  Machine here;                     // all of the one that this process runs on
  bool elsewhere = false;           // it is not the one that this process runs on
  ComputeSettings compute;          // in force for the process
  std::unique_ptr<ModelSource> source;
  PlanInputs inputs;

  // Throws DoesNotFitError, with the arithmetic and the keys to change.
  TierPlan plan() const { return make_tier_plan(inputs, machine); }
};

// Whether what was prepared is run, too: then the GPU that it is to run on is looked at.
enum class SetupFor : uint8_t { kPlanning, kComputing };

// Reads the run file, looks at the machine, sets LibTorch's threads and opens the model, for a
// process of its own that plans for `assumed` ranks, and for a GPU that need not be here. Throws
// ConfigError or DataError with every problem found. Who wants the plan calls settle_units()
// first.
RunSetup prepare_run(const RunArguments& arguments, const AssumedRanks& assumed = {},
                     SetupFor purpose = SetupFor::kPlanning);

// prepare_run for a rank that a launcher started; throws CommError too. All ranks have the
// same model, run file and units when it returns.
RunSetup join_run(const RunArguments& arguments);

// What is allowed, and not what the user may have meant; a line each, for whoever prints the plan.
std::vector<std::string> run_notes(const RunSetup& setup, const TierPlan& plan);

// The model of a run file and what the run file says of it, checked. ConfigError or DataError.
std::unique_ptr<ModelSource> open_source(
    const RunConfig& config, ModelDirectory::Weights weights = ModelDirectory::Weights::kRequired);

}  // namespace longshore
