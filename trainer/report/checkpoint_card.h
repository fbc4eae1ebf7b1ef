// CheckpointCard: the model card of what a checkpoint holds, from the directory of its run and the
// model that the run began with. Free function; any thread.
#pragma once

#include <string>

#include "base/ids.h"
#include "config/run_config.h"
#include "trainer/model/model_source.h"

namespace longshore {

// The README.md for an export of the checkpoint at `checkpoint`; empty where there is no record of
// its run.
std::string card_of_checkpoint(const ModelSource& source, const RunConfig& config,
                               const std::string& checkpoint, Step step);

}  // namespace longshore
