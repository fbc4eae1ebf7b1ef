// CommandLine entry: finds the command, splits run files, overrides and options, and turns errors
// into messages and documented exit codes. Main thread.
#pragma once

#include <string>
#include <vector>

namespace longshore {

// `arguments` exclude the program's name. Returns the process's exit code.
int run_command_line(const std::vector<std::string>& arguments);

}  // namespace longshore
