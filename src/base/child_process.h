// ChildProcess: another program, run to its end, with its output in files. Any thread; the caller
// waits. The program is in our process group, so Ctrl-C ends it too.
#pragma once

#include <string>
#include <vector>

namespace longshore {

struct ChildOutput {
  std::string out = "/dev/null";
  std::string error = "/dev/null";
};

// Runs arguments[0], found in PATH where it has no slash. Its exit code, 128 + N where signal N
// ended it, and 127 where it could not be started.
int run_child(std::vector<std::string> arguments, const ChildOutput& output);

}  // namespace longshore
