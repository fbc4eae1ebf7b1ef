// UnitGroups: which units of a model are gathered together, as a user's policy says. Pure
// functions, no LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shard/unit_spec.h"

namespace longshore {

// What becomes a unit. The model's units in a row may be merged; blocks may be cut
// (model/unit_cut.h).
struct UnitPolicy {
  enum class Kind : uint8_t {
    kBlock,          // the model's own units
    kHalf,           // the same, with every block cut in two
    kPiece,          // the same, and the embedding and the head in pieces of so many rows
    kClasses,        // units of these classes stay alone, others are merged with their neighbours
    kMinParameters,  // merged in a row until they have that many parameters
    kGroups,         // by hand: lists of the model's units, or halves of blocks; others stay alone
  };
  Kind kind = Kind::kBlock;
  std::vector<std::string> classes;
  int64_t min_parameters = 0;
  int64_t rows = 0;  // of kPiece; 0: pieces as large as the largest other unit
  std::vector<std::vector<std::string>> groups;
};

// The model's units, group by group, in order. `classes`: of every unit. ConfigError with what the
// policy names and the model has not.
std::vector<std::vector<UnitId>> group_units(const ModelSpec& model,
                                             const std::vector<std::string>& classes,
                                             const UnitPolicy& policy);

// The model with each group as one unit: "block.0", "block.0..block.3".
ModelSpec merge_units(const ModelSpec& model, const std::vector<std::vector<UnitId>>& groups);

}  // namespace longshore
