// FileTier: a tier for tests: state, parameters and inputs in plain files, with one blocking read
// or write an operation; no rings, checksums or versions, and nothing outlives the process. What a
// further tier takes is what is in file_tier.cpp.
#pragma once

#include <string>

#include "offload/engine/tiers.h"

namespace longshore {

// For plans with state, parameters and inputs on drives, whose slots and host bytes it takes; its
// files are in `directory`.
MakeTiers file_tiers(const std::string& directory);

}  // namespace longshore
