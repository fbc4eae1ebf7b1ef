// ModelCard: the README.md of an exported model: what it was made from, on what data, how, and what
// came of it, as the run's directory tells. Pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "trainer/report/run_record.h"

namespace longshore {

// The model that the run began with.
struct CardBase {
  std::string name = {};  // a hub id, or the name of its directory; empty: random weights
  bool on_hub = false;    // `name` is an id
  std::string card = {};  // its own README.md; empty: none
  std::string family = {};
  int64_t parameters = 0;
  std::vector<std::string> use = {};  // what its user must know, a sentence each
};

// `step`: after which the weights were exported.
std::string model_card(const RunRecord& run, const CardBase& base, Step step);

}  // namespace longshore
