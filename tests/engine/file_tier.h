// A tier for tests that keeps state, parameters and inputs in plain files, with one
// blocking read or write per operation. It has no rings, checksums or versions, and nothing
// outlives the process. file_tier.cpp shows all that a further tier needs.
#pragma once

#include <string>

#include "offload/engine/tiers.h"

namespace longshore {

// Makes tiers for plans with state, parameters and inputs on drives, with the plan's slots and host
// bytes; the files are in `directory`.
MakeTiers file_tiers(const std::string& directory);

}  // namespace longshore
