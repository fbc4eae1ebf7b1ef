// All decisions about a run before allocation, as a chain of types, each made from the
// previous one: ReadRun (run file, ranks, machine), OpenedRun (the model in units) and MeasuredRun
// (costs of the units), which alone makes plans. Owned by the command; main thread.
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

// The run files in the order of reading; overrides apply after them.
struct RunArguments {
  std::vector<std::string> files;
  std::vector<Override> overrides;
  bool any_base = false;  // --any-base: adapter.any_base of the adapter that the command takes
};

// Simulated ranks, machine and weights: a plan may be made without them.
struct AssumedRanks {
  int32_t ranks = 0;     // 0: one for each GPU of `machine`; one on the local machine
  int32_t per_node = 0;  // 0: one for each GPU of the machine, at most `ranks`
  std::optional<Machine> machine = {};  // empty: the local machine
  // kOptional: the model's directory may have no weights yet.
  ModelDirectory::Weights weights = ModelDirectory::Weights::kRequired;
  // Host memory for measuring units. Empty: the rank's share of free memory; 0: none.
  std::optional<Bytes> probe_memory = {};
};

struct ReadRun {
  RunConfig config;
  // Null if the command joins no other ranks. Shared, because a later stage's failure is reported
  // to the other ranks after that stage's object is destroyed.
  std::shared_ptr<RunRanks> ranks;
  ShardTopology topology;
  int32_t ranks_per_node = 1;
  Machine machine;         // the target machine, with one rank's share of the cores
  Machine here;            // the whole local machine
  bool elsewhere = false;  // the target machine is not the local one
  ModelDirectory::Weights weights = ModelDirectory::Weights::kRequired;
  std::optional<Bytes> probe_memory;
};

// A run with its model. Made by setting LibTorch's threads, opening the model and examining the
// drives. Throws ConfigError or DataError that names all problems.
struct OpenedRun : ReadRun {
  explicit OpenedRun(ReadRun read);

  ComputeSettings compute;  // LibTorch's settings in this process
  std::unique_ptr<ModelSource> source;
  PlanInputs inputs;  // MeasuredRun adds costs, units and geometry of drives
};

// DecodeNeeds says what a caller wants to decode at the same time.
struct DecodeNeeds {
  int64_t sequences = 1;  // a plan takes at most kMostSequences (offload/plan/decode_plan.h)
  int64_t longest = 0;    // tokens of the longest prompt and its answer; 0: data.max_tokens
};

// A run with measured units. Resolves fsdp.units ("auto": the cut on the drives, else the coarsest
// that fits on every rank), train.micro_batch ("auto": that of the run to continue, else
// micro_batch_choice.h) and the stripes. Collective: all ranks get the same units, micro-batch and
// costs.
struct MeasuredRun : OpenedRun {
  explicit MeasuredRun(OpenedRun opened);

  // Throws DoesNotFitError, which shows the arithmetic and the keys to change.
  TierPlan plan() const { return make_tier_plan(inputs, machine); }
  // Returns the plan for a process that loads the model into host memory, without drives. A frozen
  // model stays in its files only if it does not fit. With `needs` the process decodes only: the
  // plan has states for as many sequences as fit. Throws ConfigError if the model cannot continue
  // sequences.
  TierPlan plan_for_inference(const std::optional<DecodeNeeds>& needs = {}) const;
  // Makes plans of training keep states too, for the samples that the run decodes between steps: as
  // many sequences as fit beside training on every rank. Collective.
  void decode_samples(const DecodeNeeds& needs);
};

// The purpose of a setup. kComputing runs on the local machine, so its GPU is checked.
enum class SetupFor : uint8_t { kPlanning, kComputing };

// Reads the run file and probes the machine, in a single process that plans for `assumed` ranks.
// The planned GPU may be absent. Throws ConfigError that names all problems.
ReadRun read_run(const RunArguments& arguments, const AssumedRanks& assumed = {},
                 SetupFor purpose = SetupFor::kPlanning);

// Runs the stages up to the opened model for a rank that a launcher started. On return all ranks
// have the same model and run file. Throws CommError too.
OpenedRun join_run(const RunArguments& arguments);

// Returns a line for each setting that is valid but may be unintended, for the plan's output.
std::vector<std::string> run_notes(const MeasuredRun& run, const TierPlan& plan);

// Opens the model of a run file and checks the keys about it. Throws ConfigError or DataError.
std::unique_ptr<ModelSource> open_source(
    const RunConfig& config, ModelDirectory::Weights weights = ModelDirectory::Weights::kRequired);

// Sets inputs.gather from fsdp.gather, or for "auto" by a measurement on all ranks. `groups` is
// null if the command joins no ranks; "auto" is then "host" if that is possible. Throws ConfigError
// if the run file's value is not possible.
void choose_gather(const RunConfig& config, const RankGroups* groups, PlanInputs& inputs);

}  // namespace longshore
