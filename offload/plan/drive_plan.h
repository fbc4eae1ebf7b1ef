// DrivePlan: the files of one rank on the drives, and a step's writes to each. Plain values.
#pragma once

#include <vector>

#include "nvme/store/nvme_inputs.h"
#include "nvme/store/nvme_store.h"
#include "offload/plan/plan_sizes.h"
#include "offload/plan/step_plan.h"

namespace longshore {

struct DrivePlan {
  NvmeTier tier;
  std::vector<Bytes> files;        // by drive: all versions of the state, and inputs
  std::vector<Bytes> step_writes;  // by drive, of all ranks of the node
  Bytes missing = 0;               // bytes by which the files exceed the free space
};

DrivePlan plan_drives(const PlanSizes& sizes, const StepPlan& step);

// Returns the options of the rank's drive store; `run` identifies the run that owns the state.
NvmeStoreOptions nvme_options(const NvmeTier& tier, const StateOptions& state,
                              const ShardTopology& topology, Rank rank, const RunKey& run);

// Returns the options of the drive tier of activation checkpoints; `train` lists the saved units.
NvmeInputOptions nvme_input_options(const NvmeTier& tier, const StepSchedule& train,
                                    int64_t micro_batches, Rank rank);

}  // namespace longshore
