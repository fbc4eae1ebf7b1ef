// RouterState: the corrections of routers' choices of a run that moves them
// (train.router_correction_rate), beside its steps. Checkpoints have them in their manifest. A step
// on drives names them by their hash, and their text lies in run.dir/router_corrections, durable
// before the step commits. Free functions; main thread.
#pragma once

#include <string>

#include "trainer/checkpoint/run_progress.h"
#include "trainer/model/model_source.h"

namespace longshore {

// Returns the corrections that the model's files hold, or none if the run moves none.
std::vector<float> initial_corrections(const ModelSource& source);

// Throws CheckpointError if the corrections saved at `path` are not of this model.
void check_corrections(const RunProgress& saved, const ModelSource& source,
                       const std::string& path);

// Makes the corrections after a step durable in the run's directory and removes those of steps that
// no commit names any more. Rank 0 calls it before the step commits.
void keep_corrections(const std::string& run_directory, const RunProgress& progress);

// Reads the corrections of a committed step. Throws CheckpointError if they are gone or damaged.
std::vector<float> kept_corrections(const std::string& run_directory, Step step, uint64_t hash);

}  // namespace longshore
