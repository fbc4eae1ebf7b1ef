// The log-probability of every document under the weights that a run starts from, for losses that
// compare with them ([Note: preference losses]). They are computed once, before the first step, by
// evaluation passes of the run's own engine, and kept in the run's directory, because later the run
// no longer has these weights. Free functions; called by the engine's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "offload/engine/engine.h"
#include "trainer/data/run_data.h"
#include "trainer/setup/run_ranks.h"

namespace longshore {

// Returns the number of values: one for each document and each mismatched one.
int64_t reference_count(const SequenceData& data);

// Returns the values for Objective::references, with the engine's parameters; 0 for documents in no
// sequence. Collective: each rank computes its share. Calls `stop` between passes.
std::vector<double> compute_reference(Engine& engine, const SequenceData& data,
                                      const std::shared_ptr<const Loss>& loss, int64_t micro_batch,
                                      const StopCheck& stop);

// The values that a run keeps.
struct References {
  std::vector<double> values = {};
  // StartIdentity::values of the model that computed them, if it is not the run's own start.
  std::string model = {};
};

// Writes the file of the values: a line of JSON, then the values. `key` identifies everything that
// the values depend on.
void write_reference(const std::string& path, const std::string& key, const References& references);
// Returns on every rank the values that rank 0 reads; only rank 0 needs access to the run's
// directory. Throws CheckpointError if the file is missing, damaged, or has another key or number
// of values. Collective.
References read_reference(const std::string& path, const std::string& key, int64_t documents,
                          const RunRanks& ranks);

// Returns the key of the values of `data` for a run of this model.
std::string reference_key(const RunConfig& config, const std::string& model_fingerprint,
                          const SequenceData& data);

}  // namespace longshore
