// RunEnvironment: what a run ran on, for env.json and for bug reports. Plain functions; they read
// the system and never fail: what cannot be read is left out.
#pragma once

#include <string>

#include "base/bytes.h"
#include "base/json.h"

namespace longshore {

// Versions, build id, kernel, processor, allowed cores, memory and limits of this process.
Json run_environment();

// The linker's id of this binary in hexadecimal; empty when it has none.
std::string build_id();

// Resident memory of this process; 0 where it cannot be read.
Bytes resident_bytes();

}  // namespace longshore
