// CheckpointCard: what an export of a checkpoint says beside its weights: the model card, the chat
// template and the end tokens that were trained, from the directory of its run and the model that
// the run began with. Free function; any thread.
#pragma once

#include <string>

#include "base/ids.h"
#include "config/run_config.h"
#include "trainer/model/model_source.h"
#include "trainer/model/trained_text.h"

namespace longshore {

// For an export of the checkpoint at `checkpoint`; nothing where there is no record of its run.
ExportTexts texts_of_checkpoint(const ModelSource& source, const RunConfig& config,
                                const std::string& checkpoint, Step step);

}  // namespace longshore
