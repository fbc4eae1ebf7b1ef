#include "comm/operations/payload_counters.h"

namespace longshore {

std::string_view name_of(CommKind kind) {
  switch (kind) {
    case CommKind::kAllGather:
      return "all_gather";
    case CommKind::kReduceScatter:
      return "reduce_scatter";
    case CommKind::kAllReduce:
      return "all_reduce";
    case CommKind::kScalars:
      return "scalars";
    case CommKind::kBroadcast:
      return "broadcast";
    case CommKind::kBarrier:
      return "barrier";
  }
  return "?";
}

PayloadCounters::Count& PayloadCounters::Count::operator+=(const Count& other) {
  operations += other.operations;
  payload += other.payload;
  waited_seconds += other.waited_seconds;
  return *this;
}

PayloadCounters::Count& PayloadCounters::Count::operator-=(const Count& other) {
  operations -= other.operations;
  payload -= other.payload;
  waited_seconds -= other.waited_seconds;
  return *this;
}

PayloadCounters::Count PayloadCounters::Totals::all() const {
  Count sum;
  for (const auto& [key, count] : counts) sum += count;
  return sum;
}

PayloadCounters::Count PayloadCounters::Totals::of(CommKind kind) const {
  Count sum;
  for (const auto& [key, count] : counts) {
    if (key.first == kind) sum += count;
  }
  return sum;
}

PayloadCounters::Count PayloadCounters::Totals::of(CommKind kind,
                                                   std::optional<UnitId> unit) const {
  const auto found = counts.find({kind, unit});
  return found == counts.end() ? Count{} : found->second;
}

void PayloadCounters::add(CommKind kind, std::optional<UnitId> unit, Bytes payload) {
  Count& count = total_.counts[{kind, unit}];
  ++count.operations;
  count.payload += payload;
}

void PayloadCounters::add_wait(CommKind kind, std::optional<UnitId> unit, double seconds) {
  total_.counts[{kind, unit}].waited_seconds += seconds;
}

PayloadCounters::Totals PayloadCounters::take() {
  Totals since = total_;
  for (auto& [key, count] : since.counts) count -= taken_.counts[key];
  taken_ = total_;
  return since;
}

}  // namespace longshore
