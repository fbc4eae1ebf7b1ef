// Exporting a run: the parameters at home as a Hugging Face directory. One thread.
#pragma once

#include <string>

#include "fsdp/engine.h"
#include "hf/exporter.h"
#include "trainer/model_source.h"

namespace longshore {

// Writes `destination` from the engine's masters. Pending updates are applied first. Types follow
// the model's files, or are fp32.
ExportResult export_run(const ModelSource& source, Engine& engine, const std::string& destination,
                        bool as_fp32);

// A reader of the engine's masters by parameter name, in whole-parameter elements. The engine must
// outlive it.
ParameterReader master_reader(Engine& engine);

}  // namespace longshore
