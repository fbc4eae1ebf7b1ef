// The user's command at the end of a run (run.on_end). Called once by rank 0, on the main thread,
// after the run's memory is free and the other ranks know of its end; blocks until the command has
// ended.
#pragma once

#include <string>

#include "config/run_config.h"

namespace longshore {

struct RunEnd {
  int exit_code = 0;          // of the run
  std::string exported = {};  // the directory of the export that this process wrote; empty: none
  std::string message = {};   // why it failed or stopped; may be empty
};

// Runs the command with three more arguments: run.dir, the exit code, and the exported directory or
// an empty text. Directories are absolute. The command does not get the variables of launchers, so
// it has no secret of the run and takes itself for no rank. A failure is a warning. Never throws.
void run_end_command(const RunSection& run, const RunEnd& end);

}  // namespace longshore
