#include "offload/plan/resident_plan.h"

#include <algorithm>
#include <functional>
#include <set>

#include "pinned/frozen_file_store.h"

namespace longshore {
namespace {

// "auto" leaves this part of the free memory to other programs and to estimates that are short. An
// amount in the run file is used in full.
constexpr Bytes kLeftOfFree = 10;

}  // namespace

// A step reads from the files while other units compute. Two reads in a row leave the second one
// the computation of one unit to hide behind; with a resident unit between them it has two. So for
// the same bytes an even spread hides more of the reads than keeping the first units would.
std::vector<bool> spread_resident(const std::vector<ResidentUnit>& units, Bytes room) {
  std::vector<bool> resident(units.size(), false);
  std::set<int32_t, std::greater<>> counts;
  for (const ResidentUnit& unit : units) {
    if (unit.bytes > 0) counts.insert(unit.reads);
  }
  for (const int32_t reads : counts) {
    const auto keep = [&](size_t i) {
      const bool fits = !resident[i] && units[i].bytes <= room;
      if (fits) room -= units[i].bytes;
      resident[i] = resident[i] || fits;
      return fits;
    };
    const auto is_equal = [&](const ResidentUnit& unit) {
      return unit.bytes > 0 && unit.reads == reads;
    };
    Bytes all = 0, largest = 0;
    for (const ResidentUnit& unit : units) {
      if (!is_equal(unit)) continue;
      all += unit.bytes;
      largest = std::max(largest, unit.bytes);
    }
    // Whole units of the largest size, so that a rest of the room shifts none of them.
    const Bytes whole = room / largest * largest;
    const double share = std::min(1.0, static_cast<double>(whole) / static_cast<double>(all));
    double owed = 0.0;  // bytes that should be resident up to here and are not
    for (size_t i = 0; i < units.size(); ++i) {
      if (!is_equal(units[i])) continue;
      const auto bytes = static_cast<double>(units[i].bytes);
      owed += bytes * share;
      if (owed >= bytes / 2 && keep(i)) owed -= bytes;
    }
    for (size_t i = 0; i < units.size(); ++i) {
      if (is_equal(units[i])) keep(i);
    }
  }
  return resident;
}

std::vector<bool> choose_resident(const PlanSizes& sizes, const StepPlan& step,
                                  const HostPlan& host) {
  const PlanInputs& inputs = sizes.inputs();
  if (inputs.frozen_files && inputs.keep_frozen) {
    return std::vector<bool>(sizes.layouts().size(), true);
  }
  if (!inputs.frozen_files || !inputs.fill_host) return {};
  Bytes room = host.limit - host.total - (host.limit_auto ? host.limit / kLeftOfFree : 0);
  if (room <= 0) return {};
  std::vector<ResidentUnit> units;
  Bytes all = 0;
  for (const FlatLayout& layout : sizes.layouts()) {
    units.push_back({.bytes = FrozenFileStore::planned_resident_bytes(layout, inputs.state)});
    all += units.back().bytes;
  }
  for (const Op& op : step.schedules.train.ops) {
    if (op.kind == OpKind::kReadParameters) ++units[static_cast<size_t>(op.unit.value)].reads;
  }
  // Without a unit that is read there are no slots either.
  const Bytes slots = FrozenFileStore::planned_slot_bytes(sizes.layouts(), {}, inputs.state);
  if (all <= room + slots) room = all;
  std::vector<bool> resident = spread_resident(units, room);
  if (std::ranges::find(resident, true) == resident.end()) return {};
  return resident;
}

}  // namespace longshore
