// Describes the software and hardware of a run for env.json and bug reports. Plain
// functions that read the system and never fail; they leave out unreadable values.
#pragma once

#include <string>

#include "base/bytes.h"
#include "base/json.h"

namespace longshore {

// Returns versions, build id, kernel, processor, allowed cores, memory and limits of this process.
Json run_environment();

// Returns the linker's build id of this binary in hexadecimal; empty if it has none.
std::string build_id();

// Returns the date of now in UTC, such as "2026-12-01".
std::string today();

// Returns the resident memory of this process; 0 if it cannot be read.
Bytes resident_bytes();

}  // namespace longshore
