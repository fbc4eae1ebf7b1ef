// CommandList: the list of all commands. The build generates it from the names of the files
// (trainer/CMakeLists.txt).
#pragma once

#include <vector>

#include "trainer/commands/command.h"

namespace longshore {

// Returns the commands ordered by name.
std::vector<const Command*> all_commands();

}  // namespace longshore
