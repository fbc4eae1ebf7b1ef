// The other end of a pipe that was opened without waiting for it. Internal to src/base; any thread.
#pragma once

#include <chrono>

#include "base/file.h"

namespace longshore {

// Returns when somebody has opened the pipe to write, at once where the descriptor is no pipe.
// IoError where nobody has within `patience`.
void wait_for_writer(const UniqueFd& fd, std::chrono::milliseconds patience);

}  // namespace longshore
