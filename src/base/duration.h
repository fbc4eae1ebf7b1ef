// Durations and their text forms ("30s", "10m"). Pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace longshore {

// Parses "500ms", "30s", "10m", "2h". Returns nullopt for other texts and beyond 1000 days.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);

// Formats the duration in the largest unit that divides it, so that nothing is rounded.
std::string format_duration(std::chrono::milliseconds duration);

// Formats as a clock: "0:09", "14:02", "3:14:02", "2d 03:14"; "0:00" if negative or not finite.
std::string format_duration(double seconds);

}  // namespace longshore
