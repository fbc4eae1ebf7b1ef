// Waits for the writer of a pipe that was opened with O_NONBLOCK. Internal to src/base; any thread.
#pragma once

#include <chrono>

#include "base/file.h"

namespace longshore {

// Returns when a writer has opened the pipe, and at once if the descriptor is not a pipe. Throws
// IoError if no writer appears within `patience`.
void wait_for_writer(const UniqueFd& fd, std::chrono::milliseconds patience);

}  // namespace longshore
