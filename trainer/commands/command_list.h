// Every command there is: the build makes the list from the names of the files
// (trainer/CMakeLists.txt).
#pragma once

#include <vector>

#include "trainer/commands/command.h"

namespace longshore {

// In the order of their names.
std::vector<const Command*> all_commands();

}  // namespace longshore
