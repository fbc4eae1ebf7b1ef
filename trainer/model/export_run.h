// Exports a run's parameters as a Hugging Face directory, from a checkpoint or from an
// engine that holds whole units. Memory is bounded by a few chunks. One thread.
#pragma once

#include <string>

#include "hf/exporter.h"
#include "hf/model_directory.h"
#include "offload/engine/engine.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/model/model_source.h"
#include "trainer/model/trained_text.h"

namespace longshore {

// ExportChoice says what is written. A run with adapters writes the adapter alone unless `merged`
// asks for the model with the adapters' products added to its weights.
struct ExportChoice {
  bool merged = false;
  bool as_fp32 = false;  // false: the types of the model's files
  // Packed matrices of the model's files are packed again; false: they become bf16.
  bool published = false;
  bool allow_nonfinite = false;
};

// Returns whether the export holds the adapter alone, not a whole model.
bool exports_adapter(const ModelSource& source, const ExportChoice& choice);

// Returns whether checkpoint.export_format is "published".
bool asks_for_published(const RunConfig& config);
// Throws ConfigError if checkpoint.export_format asks for a form that this model does not have.
void check_export_format(const RunConfig& config, const ModelSource& source);

// Returns the bytes of the tensors that an export writes. Without weights the types are those of
// config.json.
Bytes export_bytes(const RunConfig& config, const ModelSource& source, bool merged);
// Returns those of the export that checkpoint.export asks for; 0 if it asks for none.
Bytes run_export_bytes(const RunConfig& config, const ModelSource& source);

// Applies pending updates and writes `destination` from the masters of a single-rank engine. Throws
// CheckpointError, and leaves the destination as it was, if a frozen value that it reads is not
// that of `start`, with which the weights' run began; so does export_checkpoint.
ExportResult export_run(const ModelSource& source, Engine& engine, const std::string& destination,
                        const ExportChoice& choice, const ExportTexts& texts,
                        const StartIdentity& start);

// Returns example commands for the export in `directory`. `run` names the run in a command line:
// the quoted words behind `longshore export`.
std::string next_commands(const std::string& directory, const ModelSource& source,
                          const ExportChoice& choice, const std::string& run);

// ConfigError if the run exports at its end and its directory is, or is inside, the model's. A link
// to the model inside it is allowed, because the export is then written beside the link.
void check_run_export(const RunConfig& config, const ModelDirectory& model);

// Returns the directory of a run's own export: `wanted`, or "wanted-2" and so on if it contains
// files that no export wrote. Foreign files are never changed. ConfigError inside the model's
// directory, which check_run_export refuses at the start.
std::string free_export_directory(const ModelSource& source, const std::string& wanted,
                                  const ExportChoice& choice, const ExportTexts& texts);

// Exports a verified checkpoint of any number of ranks without communication. Frozen parameters
// come from the model.
ExportResult export_checkpoint(const ModelSource& source, const Checkpoint& checkpoint,
                               const std::string& destination, const ExportChoice& choice,
                               const ExportTexts& texts);

// Returns a reader of the engine's masters by parameter name and element offset in the whole
// parameter. The engine must outlive it.
ParameterReader master_reader(const ModelSource& source, Engine& engine);

}  // namespace longshore
