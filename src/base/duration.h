// Durations and their text forms ("30s", "10m"). Pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace longshore {

// Reads "500ms", "30s", "10m", "2h"; nullopt for anything else and for more than 1000 days.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);

// In the largest unit that divides it, so that nothing is rounded.
std::string format_duration(std::chrono::milliseconds duration);

// As a clock shows it: "0:09", "14:02", "3:14:02", "2d 03:14"; "0:00" for what is no time.
std::string format_duration(double seconds);

}  // namespace longshore
