#include "pinned/numa.h"

#include <charconv>
#include <fstream>
#include <string>

namespace longshore {
namespace {

// This is more than Linux supports.
constexpr int kMostIds = 1 << 16;

// Removes a number from the front of the text and returns it; returns -1 if there is none.
int take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number >= kMostIds) return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

}  // namespace

std::vector<int> parse_id_list(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with(' ')) text.remove_suffix(1);
  std::vector<int> ids;
  while (!text.empty()) {
    const int first = take_number(text);
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number(text);
    }
    if (first < 0 || last < first) return {};
    for (int id = first; id <= last; ++id) ids.push_back(id);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return {};
    text.remove_prefix(1);
  }
  return ids;
}

std::vector<int> read_numa_nodes(const std::filesystem::path& root) {
  std::ifstream file(root / "sys/devices/system/node/has_memory");
  std::string line;
  std::getline(file, line);
  const std::vector<int> nodes = parse_id_list(line);
  return nodes.empty() ? std::vector<int>{0} : nodes;
}

}  // namespace longshore
