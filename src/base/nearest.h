// Nearest: the known name that is closest to a mistyped one, for "did you mean". Pure function.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace longshore {

// Insertions, deletions, replacements and swaps of neighbours that lead from one text to the other.
int edit_distance(std::string_view from, std::string_view to);

// The closest of `names`, the first among equals; empty where none is near enough to be meant
// (more than a third of the longer name's characters differ, but one change is always allowed).
std::string nearest_name(std::string_view name, std::span<const std::string> names);

}  // namespace longshore
