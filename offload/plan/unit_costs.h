// UnitCosts: what LibTorch's temporaries take, unit by unit, and what follows for the whole model.
// Values and pure functions; where the figures come from, the plan does not ask.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "shard/unit_spec.h"

namespace longshore {

// How sure a figure is, surest first.
enum class CostSource : uint8_t {
  kMeasured,   // by running the unit on its worst inputs
  kFitted,     // to runs on smaller inputs
  kEstimated,  // on another kind of device, or not run at all
  kTooLarge,   // running it, the device had too little memory: figures are no less than all of it
};
std::string_view name_of(CostSource source);  // "measured"

// What one unit takes at most for one micro-batch.
struct UnitCost {
  Bytes forward = 0;
  Bytes backward = 0;
  Bytes saved = 0;  // kept between forward and backward when nothing is recomputed
  CostSource source = CostSource::kMeasured;
};

// The costs of every unit for micro-batches of at most `positions` positions, of which no document
// is longer than `longest_document`. Pure.
using UnitCosts = std::function<std::vector<UnitCost>(int64_t positions, int64_t longest_document)>;

// What a pass takes at most, with graphs kept of so many units before the loss.
struct Workspace {
  Bytes worst = 0;                            // of the unit that runs
  std::string unit;                           // which, "block.3 backward"
  Bytes saved = 0;                            // of the kept graphs, of one micro-batch
  CostSource source = CostSource::kMeasured;  // the least sure of all units'
};
Workspace workspace_of(const ModelSpec& model, const std::vector<UnitCost>& costs,
                       int32_t kept_graphs);

}  // namespace longshore
