// The README.md of an exported model: base model, data, recipe and results. texts_of_checkpoint
// makes it from the run's directory, and adds the chat template and end tokens that were trained
// with the weights. Free functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "config/run_config.h"
#include "trainer/model/model_source.h"
#include "trainer/model/trained_text.h"
#include "trainer/report/run_record.h"

namespace longshore {

// CardBase: the model that the run started from.
struct CardBase {
  std::string name = {};    // a hub id, or the name of its directory; empty: random weights
  bool on_hub = false;      // `name` is a hub id
  std::string card = {};    // the base model's README.md; empty if it has none
  std::string family = {};  // the architecture, such as "llama"
  int64_t parameters = 0;   // number of elements
  bool adapter = false;     // the export is an adapter for the base model
  bool dora = false;        // it is a DoRA adapter
  std::vector<std::string> use = {};  // notes for the user of the model, a sentence each
};

// Returns the text of the card. `step` is the step whose weights were exported.
std::string model_card(const RunRecord& run, const CardBase& base, Step step);

// The texts that an export of a checkpoint contains in addition to its weights: the model card, the
// trained chat template and end tokens. They come from the run's directory and the base model.

// Returns the texts for an export of the checkpoint, as an adapter (`adapter`) or as a whole model;
// empty if its run left no record.
ExportTexts texts_of_checkpoint(const ModelSource& source, const RunConfig& config,
                                const std::string& checkpoint, Step step, bool adapter);

}  // namespace longshore
