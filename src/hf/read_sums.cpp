#include "hf/read_sums.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/hash.h"

namespace longshore {

std::optional<std::pair<Bytes, Bytes>> ReadSums::first_gap(const Ranges& ranges, Bytes begin,
                                                           Bytes end) {
  auto next = ranges.upper_bound(begin);
  if (next != ranges.begin()) begin = std::max(begin, std::prev(next)->second.end);
  if (begin >= end) return std::nullopt;
  // Ranges do not adjoin, so a byte that is not summed follows every range.
  return std::pair(begin, next == ranges.end() ? end : std::min(end, next->first));
}

void ReadSums::insert(Ranges& ranges, Bytes begin, Rest rest) {
  auto next = ranges.upper_bound(begin);
  if (next != ranges.end() && next->first == rest.end) {
    rest = {next->second.end, rest.sum + next->second.sum};
    next = ranges.erase(next);
  }
  if (next != ranges.begin() && std::prev(next)->second.end == begin) {
    Rest& before = std::prev(next)->second;
    before = {rest.end, before.sum + rest.sum};
    return;
  }
  ranges.emplace_hint(next, begin, rest);
}

void ReadSums::take(size_t tensor, Bytes begin, std::span<const std::byte> bytes) {
  const Bytes end = begin + static_cast<Bytes>(bytes.size());
  const auto gap_now = [&]() LONGSHORE_REQUIRES(mutex_) {
    return first_gap(tensors_.at(tensor), begin, end);
  };
  std::optional<std::pair<Bytes, Bytes>> gap;
  {
    const MutexLock lock(mutex_);
    gap = gap_now();
  }
  while (gap) {
    const auto [from, to] = *gap;
    // Other threads may sum in the meantime, and perhaps the same bytes.
    const uint64_t sum = place_sum(
        from, bytes.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from)));
    const MutexLock lock(mutex_);
    if (gap_now() == gap) insert(tensors_.at(tensor), from, {to, sum});
    gap = gap_now();
  }
}

std::vector<SummedRange> ReadSums::ranges(size_t tensor) const {
  const MutexLock lock(mutex_);
  std::vector<SummedRange> ranges;
  for (const auto& [begin, rest] : tensors_.at(tensor)) {
    ranges.push_back({begin, rest.end, rest.sum});
  }
  return ranges;
}

void ReadSums::restart() {
  const MutexLock lock(mutex_);
  for (Ranges& ranges : tensors_) ranges.clear();
}

}  // namespace longshore
