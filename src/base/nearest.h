// Nearest: the known name that is closest to a mistyped one, for "did you mean". Pure function.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace longshore {

// Counts the insertions, deletions, replacements and swaps of neighbours between two texts.
int edit_distance(std::string_view from, std::string_view to);

// Returns the closest of `names`, the first among equals. Returns "" if more than a third of the
// longer name's characters differ; one change is always allowed.
std::string nearest_name(std::string_view name, std::span<const std::string> names);

}  // namespace longshore
