// CheckpointCard: the texts that an export of a checkpoint contains beside its weights: the model
// card, the trained chat template and end tokens. They come from the run's directory and the base
// model. Free function; any thread.
#pragma once

#include <string>

#include "base/ids.h"
#include "config/run_config.h"
#include "trainer/model/model_source.h"
#include "trainer/model/trained_text.h"

namespace longshore {

// Returns the texts for an export of the checkpoint; empty if its run left no record.
ExportTexts texts_of_checkpoint(const ModelSource& source, const RunConfig& config,
                                const std::string& checkpoint, Step step);

}  // namespace longshore
