// numa: reads from /sys which NUMA nodes of the machine have memory. Keeps no state; any thread.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace longshore {

// Returns the ids of the nodes with memory, ascending, from the files below `root` ("/" except in
// tests). Returns {0} if the kernel lists none.
std::vector<int> read_numa_nodes(const std::filesystem::path& root);

// Parses an id list such as "0-2,5"; returns an empty list for any other text.
std::vector<int> parse_id_list(std::string_view text);

}  // namespace longshore
