// NUMA nodes of the machine, from /sys: which exist and have memory. Pure reading of files.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace longshore {

// Ids of the nodes with memory, ascending, as the files below `root` ("/" but in tests) say; {0}
// where the kernel says nothing.
std::vector<int> read_numa_nodes(const std::filesystem::path& root);

// "0-2,5" as numbers; empty for any other text.
std::vector<int> parse_id_list(std::string_view text);

}  // namespace longshore
