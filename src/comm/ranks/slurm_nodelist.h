// SlurmNodelist: parses SLURM's compressed host lists. Pure function.
#pragma once

#include <string>
#include <string_view>

namespace longshore {

// Returns the first host of "node[003-005,007],other" ("node003"); "" for invalid text.
std::string first_slurm_host(std::string_view list);

}  // namespace longshore
