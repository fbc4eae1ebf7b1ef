// DrivePlan: the files of one rank on the drives, and what a step writes to each. Plain values.
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
  Bytes missing = 0;               // what the files need beyond what is free there
};

DrivePlan plan_drives(const PlanSizes& sizes, const StepPlan& step);

// What the rank's store on drives is made with; `run` tells the state of one run from another's.
NvmeStoreOptions nvme_options(const NvmeTier& tier, const StateOptions& state,
                              const ShardTopology& topology, Rank rank, const RunKey& run);

// What the tier of activation checkpoints is made with: those that the train pass saves and writes.
NvmeInputOptions nvme_input_options(const NvmeTier& tier, const StepSchedule& train,
                                    int64_t micro_batches, Rank rank);

}  // namespace longshore
