// What is decided about a run before anything is allocated, as a chain of types, each made from the
// one before: ReadRun (the run file, the ranks and the machine), OpenedRun (the model in units) and
// MeasuredRun (what the units take), which alone makes plans. Owned by the command; main thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  // Host memory in which units may be run to measure them; nothing: what is free, 0: none is run.
  std::optional<Bytes> probe_memory = {};
};

struct ReadRun {
  RunConfig config;
  // Null where the command joins no other ranks. Shared, because the other ranks are told what
  // ended a later stage, and that stage's object is gone by then.
  std::shared_ptr<RunRanks> ranks;
  ShardTopology topology;
  int32_t ranks_per_node = 1;
  Machine machine;         // this process's part of it
  Machine here;            // all of the one that this process runs on
  bool elsewhere = false;  // the plan is for another machine than this one
  ModelDirectory::Weights weights = ModelDirectory::Weights::kRequired;
  std::optional<Bytes> probe_memory;
};

// Sets LibTorch's threads, opens the model and looks at the drives. ConfigError or DataError with
// every problem found.
struct OpenedRun : ReadRun {
  explicit OpenedRun(ReadRun read);

  ComputeSettings compute;  // in force for the process
  std::unique_ptr<ModelSource> source;
  PlanInputs inputs;  // without what MeasuredRun finds out: costs, units, geometry of drives
};

// Resolves fsdp.units ("auto" is the coarsest cut that fits on every rank, or the one that the
// drives hold) and the stripes of the drives. Collective: all ranks have the same units and costs.
struct MeasuredRun : OpenedRun {
  explicit MeasuredRun(OpenedRun opened);

  // Throws DoesNotFitError, with the arithmetic and the keys to change.
  TierPlan plan() const { return make_tier_plan(inputs, machine); }
  // The plan for a process that loads a checkpoint into host memory, whatever tier the run trains
  // on.
  TierPlan plan_for_inference() const;
};

// Whether the run is to be executed here, too: then the GPU that it is to run on is checked.
enum class SetupFor : uint8_t { kPlanning, kComputing };

// Reads the run file and probes the machine, for a process of its own that plans for `assumed`
// ranks, and for a GPU that need not be here. ConfigError with every problem found.
ReadRun read_run(const RunArguments& arguments, const AssumedRanks& assumed = {},
                 SetupFor purpose = SetupFor::kPlanning);

// All stages for a rank that a launcher started; throws CommError too. All ranks have the same
// model and run file when it returns.
MeasuredRun join_run(const RunArguments& arguments);

// Settings that are allowed, but may not be what the user meant; one line each, for the plan.
std::vector<std::string> run_notes(const MeasuredRun& run, const TierPlan& plan);

// The model of a run file and what the run file says of it, checked. ConfigError or DataError.
std::unique_ptr<ModelSource> open_source(
    const RunConfig& config, ModelDirectory::Weights weights = ModelDirectory::Weights::kRequired);

// Sets inputs.gather as fsdp.gather says, or as a measurement on all ranks has it. `groups`: null
// where the command joins no others; "auto" then is "host" where that is possible. ConfigError
// where the run file asks for what cannot be.
void choose_gather(const RunConfig& config, const RankGroups* groups, PlanInputs& inputs);

}  // namespace longshore
