// ShellCompletion: the script that makes a shell complete longshore's commands, their options, the
// keys of run files and the choices of those keys. Made from the tables that the program reads its
// arguments with. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "trainer/commands/command_tree.h"

namespace longshore {

// `shell`: "bash", "zsh" or "fish".
std::string completion_script(std::string_view shell, const CommandHelp& program);

}  // namespace longshore
