// Exporting a run: the parameters as a Hugging Face directory, from a checkpoint or from an engine
// that holds whole units. One thread; memory is bounded by a few chunks.
#pragma once

#include <string>

#include "hf/exporter.h"
#include "offload/engine/engine.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/model/model_source.h"
#include "trainer/model/trained_text.h"

namespace longshore {

// Writes `destination` from the engine's masters; the engine is of one rank. Pending updates are
// applied first. Types follow the model's files, or are fp32.
ExportResult export_run(const ModelSource& source, Engine& engine, const std::string& destination,
                        bool as_fp32, bool allow_nonfinite, const ExportTexts& texts);

// What a user may want next, with the model in `directory`.
std::string next_commands(const std::string& directory);

// ConfigError where the run is to export at its end, and its directory is the model's or lies in
// it. (A link in it that leads there is no error: the export goes beside.)
void check_run_export(const RunConfig& config, const ModelSource& source);

// Where a run's own export goes: `wanted`, or "wanted-2" and so on, where files that no export
// wrote are in the way. Nothing of anybody's is touched. ConfigError in the model's own directory,
// which the start of a run refuses by `check_run_export`.
std::string free_export_directory(const ModelSource& source, const std::string& wanted,
                                  const ExportTexts& texts);

// Exports a verified checkpoint, whatever ranks wrote it, without talking to them. Frozen
// parameters are the model's.
ExportResult export_checkpoint(const ModelSource& source, const Checkpoint& checkpoint,
                               const std::string& destination, const ExportTexts& texts);

// A reader of the engine's masters by parameter name, in whole-parameter elements. The engine must
// outlive it.
ParameterReader master_reader(Engine& engine);

}  // namespace longshore
