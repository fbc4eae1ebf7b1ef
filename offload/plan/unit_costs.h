// UnitCosts: memory of LibTorch's temporaries by unit, and for the whole model. Values and pure
// functions, independent of the source of the numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "shard/unit_spec.h"

namespace longshore {

// The certainty of a cost, from high to low.
enum class CostSource : uint8_t {
  kMeasured,   // by running the unit on its worst inputs
  kFitted,     // to runs on smaller inputs
  kEstimated,  // on another kind of device, or without a run
  kTooLarge,   // the device ran out of memory: at least its whole memory
};
std::string_view name_of(CostSource source);  // "measured"

// The peak memory of one unit for one micro-batch.
struct UnitCost {
  Bytes forward = 0;
  Bytes backward = 0;
  Bytes saved = 0;  // between forward and backward without recompute
  CostSource source = CostSource::kMeasured;
};

// Returns the costs of every unit for micro-batches of at most `positions` positions with documents
// of at most `longest_document`. Pure.
using UnitCosts = std::function<std::vector<UnitCost>(int64_t positions, int64_t longest_document)>;

// The peak memory of a pass that keeps the graphs of the last units before the loss.
struct Workspace {
  Bytes worst = 0;                            // of the unit that runs
  std::string unit;                           // that unit, "block.3 backward"
  Bytes saved = 0;                            // of the kept graphs, of one micro-batch
  CostSource source = CostSource::kMeasured;  // the least certain of all units
};
Workspace workspace_of(const ModelSpec& model, const std::vector<UnitCost>& costs,
                       int32_t kept_graphs);

}  // namespace longshore
