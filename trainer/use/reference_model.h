// The model that preference.reference names, where it is not the run's own start:
// another directory, or the model below the adapters. It has a set-up and a plan apart from the
// run's, within the run's caps, and computes its log-probabilities before the run allocates
// anything. Functions for the main thread.
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
// also if its vocabulary or tokenizer is another one.
RunConfig other_reference_config(const RunConfig& run, const ModelSource& own);

// Opens the model, which other_reference_key() needs alone. Collective if the run has ranks.
OpenedRun open_other_reference(const MeasuredRun& run);

// Measures the opened model of a run. Throws DoesNotFitError too. Collective if the run has ranks.
MeasuredRun measured_reference(const RunConfig& run, OpenedRun opened);

// Does both.
MeasuredRun other_reference(const MeasuredRun& run);

// Returns the key of its values of `data`, as of reference_key; it changes when a weight file is
// written or replaced, whatever times it is given then.
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
