#include "base/nearest.h"

#include <algorithm>
#include <vector>

namespace longshore {

int edit_distance(std::string_view from, std::string_view to) {
  // The table of prefixes needs three rows: two back (for swaps), one back, and the current one.
  std::vector<int> before(to.size() + 1), last(to.size() + 1), row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= from.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= to.size(); ++j) {
      const int replaced = last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[to.size()];
}

std::string nearest_name(std::string_view name, std::span<const std::string> names) {
  // Longer texts are not typing mistakes, and would make the table large.
  constexpr size_t kMaxName = 64;
  if (name.size() > kMaxName) return "";
  std::string best;
  int best_distance = 0;
  for (const std::string& candidate : names) {
    const auto longer = static_cast<int>(std::max(name.size(), candidate.size()));
    const int distance = edit_distance(name, candidate);
    if (distance > std::max(1, longer / 3)) continue;
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace longshore
