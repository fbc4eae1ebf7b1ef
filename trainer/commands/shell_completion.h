// Generates the script that completes longshore's commands, options, run-file keys
// and their choices in a shell. It uses the same tables as the parser. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "trainer/commands/command_tree.h"

namespace longshore {

// `shell` is "bash", "zsh" or "fish".
std::string completion_script(std::string_view shell, const CommandHelp& program);

}  // namespace longshore
