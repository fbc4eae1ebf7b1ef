// StepSeconds: the duration of a run's steps, from its metrics file. Free function; any thread.
#pragma once

#include <optional>
#include <string>

namespace longshore {

// Returns the median in seconds over the file's last 100 steps; empty if the file is missing or has
// no step.
std::optional<double> measured_step_seconds(const std::string& metrics_path);

}  // namespace longshore
