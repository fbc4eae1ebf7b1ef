// SLURM's compressed lists of hosts. Pure function.
#pragma once

#include <string>
#include <string_view>

namespace longshore {

// The first host of "node[003-005,007],other": "node003"; empty where the text is no such list.
std::string first_slurm_host(std::string_view list);

}  // namespace longshore
