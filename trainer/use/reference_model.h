// The model that preference.reference names, if it is not the run's own start: another directory,
// or the model without the adapters. It has its own set-up and plan within the run's caps, and
// computes its log-probabilities before the run allocates memory. Functions for the main thread.
#pragma once

#include <string>
#include <vector>

#include "trainer/setup/run_setup.h"
#include "trainer/use/reference_logps.h"

namespace longshore {

// Returns whether the run compares with such a model.
bool has_other_reference(const RunConfig& config);

// Returns the run file of the model of a run whose own model is `own`. It is frozen: only its final
// norm counts as trained, because a plan has something to train. Throws ConfigError or DataError,
// also if its vocabulary or tokenizer differs.
RunConfig other_reference_config(const RunConfig& run, const ModelSource& own);

// Opens the model, which is all that other_reference_key() needs. Collective if the run has ranks.
OpenedRun open_other_reference(const MeasuredRun& run);

// Measures the opened model of a run. Throws DoesNotFitError too. Collective if the run has ranks.
MeasuredRun measured_reference(const RunConfig& run, OpenedRun opened);

// Opens and measures the model.
MeasuredRun other_reference(const MeasuredRun& run);

// Returns the key of the model's values of `data`, as reference_key does for the run's own; it
// changes when a weight file is written or replaced, even if its times are set back.
std::string other_reference_key(const OpenedRun& reference, const SequenceData& data);

// Returns a line about the pass of such a model, with the peaks of its plan.
std::string describe_other_reference(const MeasuredRun& reference);

struct ComputedReference {
  std::vector<std::vector<double>> values;  // of each set of documents
  std::string model;                        // StartIdentity::values of the model
};

// Loads the model and computes its values of each of `data`. Nothing stays allocated. Collective if
// the run has ranks.
ComputedReference compute_other_reference(const MeasuredRun& reference,
                                          const std::vector<const SequenceData*>& data,
                                          const StopCheck& stop);

}  // namespace longshore
