// ModelCard: the README.md of an exported model: base model, data, recipe and results, taken from
// the run's directory. Pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "trainer/report/run_record.h"

namespace longshore {

// CardBase is the model that the run started from.
struct CardBase {
  std::string name = {};  // a hub id, or the name of its directory; empty: random weights
  bool on_hub = false;    // `name` is a hub id
  std::string card = {};  // the base model's README.md; empty if it has none
  std::string family = {};
  int64_t parameters = 0;
  std::vector<std::string> use = {};  // notes for the user of the model, a sentence each
};

// `step` is the step whose weights were exported.
std::string model_card(const RunRecord& run, const CardBase& base, Step step);

}  // namespace longshore
