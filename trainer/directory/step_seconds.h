// How long a step of a run took, from its metrics file. Free function; any thread.
#pragma once

#include <optional>
#include <string>

namespace longshore {

// The median of the file's last steps. Nothing where there is no such file, or no step in it; a
// forecast is no reason to refuse a run.
std::optional<double> measured_step_seconds(const std::string& metrics_path);

}  // namespace longshore
