#include "offload/staging/prefetcher.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {

Prefetcher::Prefetcher(const Parts& parts) : parts_(parts), gathers_(parts.ring->slot_count()) {}

void Prefetcher::begin_pass(const PassPlan* pass) {
  for (Completion& gather : gathers_) gather.wait();
  pass_ = pass;
  next_visit_ = 0;
}

std::vector<UnitLease> Prefetcher::visit(UnitId unit) {
  LONGSHORE_CHECK(pass_ != nullptr && next_visit_ < pass_->visits.size()) << "unit " << unit;
  const Visit& visit = pass_->visits[next_visit_++];
  LONGSHORE_CHECK(visit.unit == unit) << "the pass is at unit " << visit.unit << ", not " << unit;
  const auto for_itself = [&visit](const Placed& placed) {
    return std::ranges::find(visit.leases, placed) != visit.leases.end();
  };
  for (const Placed& placed : visit.fetches) {
    if (for_itself(placed)) fetch(placed);
  }
  std::vector<UnitLease> leases;
  for (const Placed& placed : visit.leases) {
    gathers_.at(static_cast<size_t>(placed.slot)).wait();
    leases.push_back(parts_.ring->lease(placed, version_));
  }
  for (const Placed& placed : visit.fetches) {
    if (!for_itself(placed)) fetch(placed);
  }
  if (next_visit_ < pass_->visits.size()) {
    for (const Placed& placed : pass_->visits[next_visit_].fetches) {
      parts_.store->prefetch_parameters(placed.unit);
    }
  }
  return leases;
}

void Prefetcher::fetch(const Placed& placed) {
  const FlatLayout& layout = parts_.layouts->at(static_cast<size_t>(placed.unit.value));
  const Bytes width = width_of(parts_.store->options().compute);
  Completion& gather = gathers_.at(static_cast<size_t>(placed.slot));
  gather.wait();
  const std::span<std::byte> slot =
      parts_.ring->fill(placed, version_, layout.flat_elements() * width);
  Communicator::Segments segments = copy_shard(placed.unit, slot);
  if (parts_.shards == nullptr) return;
  gather = parts_.shards->all_gather(std::move(segments), {"parameters", placed.unit});
}

// Copies the rank's part of every segment to its place; returns the whole segments.
Communicator::Segments Prefetcher::copy_shard(UnitId unit, std::span<std::byte> slot) {
  const FlatLayout& layout = parts_.layouts->at(static_cast<size_t>(unit.value));
  const auto width = static_cast<size_t>(width_of(parts_.store->options().compute));
  const auto home = parts_.store->parameters(unit);
  std::span<const std::byte> source = home->bytes();
  Communicator::Segments segments;
  for (Segment segment : kSegments) {
    const ElementRange whole = layout.segment(segment);
    if (whole.elements == 0) continue;
    const ElementRange own = layout.shard(segment, parts_.shard);
    const size_t bytes = static_cast<size_t>(own.elements) * width;
    parts_.copies->to_device(slot.subspan(static_cast<size_t>(own.begin) * width, bytes),
                             source.first(bytes));
    source = source.subspan(bytes);
    segments.push_back(slot.subspan(static_cast<size_t>(whole.begin) * width,
                                    static_cast<size_t>(whole.elements) * width));
  }
  return segments;
}

}  // namespace longshore
