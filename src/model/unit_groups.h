// unit_groups: groups consecutive units of a model by the user's policy. Pure functions, no
// LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shard/unit_spec.h"

namespace longshore {

// The policy that defines units: consecutive units of the model may be merged, and blocks may be
// cut (model/unit_cut.h).
struct UnitPolicy {
  enum class Kind : uint8_t {
    kBlock,          // the model's own units
    kHalf,           // the same, with every block cut in two
    kPiece,          // like kHalf, with embedding, head and experts in pieces
    kClasses,        // units of these classes stay alone; others merge with their neighbours
    kMinParameters,  // merges consecutive units until they have that many parameters
    kGroups,         // lists of the model's units or parts of blocks; others stay alone
  };
  Kind kind = Kind::kBlock;
  std::vector<std::string> classes;
  int64_t min_parameters = 0;
  int64_t rows = 0;  // used by kPiece; 0: pieces as large as the largest other unit
  std::vector<std::vector<std::string>> groups;
};

// Returns the model's units by group, in order. `classes` holds every unit's class. Throws
// ConfigError with the names in the policy that the model lacks.
std::vector<std::vector<UnitId>> group_units(const ModelSpec& model,
                                             const std::vector<std::string>& classes,
                                             const UnitPolicy& policy);

// Returns the model with each group as one unit: "block.0", "block.0..block.3".
ModelSpec merge_units(const ModelSpec& model, const std::vector<std::vector<UnitId>>& groups);

}  // namespace longshore
