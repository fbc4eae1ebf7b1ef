#include "offload/staging/prefetcher.h"

namespace longshore {

void Prefetcher::fetch(const Placed& placed, std::optional<ParameterSlot> parameters) {
  const FlatLayout& flat = layout(placed.unit);
  const std::span<std::byte> slot =
      parts_.ring->begin_fill(placed, version_, flat.flat_elements() * static_cast<Bytes>(width()));
  if (parts_.node != nullptr) {
    parts_.node->wait_for(placed.unit, version_);
    for (int32_t member = 0; member < parts_.node->members(); ++member) {
      copy_shard(flat, Rank(member), parts_.node->shard(member, placed.unit), slot);
    }
    parts_.copies->finish();
  } else {
    const auto lease = parameters ? parts_.slots->parameters_in(placed.unit, *parameters)
                                  : parts_.store->parameters(placed.unit);
    copy_shard(flat, parts_.shard, lease->bytes(), slot);
    parts_.copies->finish();
  }
  if (!gathers()) parts_.ring->end_fill(placed, version_);
}

void Prefetcher::copy_shard(const FlatLayout& flat, Rank shard, std::span<const std::byte> source,
                            std::span<std::byte> slot) {
  for (Segment segment : kSegments) {
    const ElementRange own = flat.shard(segment, shard);
    const size_t bytes = static_cast<size_t>(own.elements) * width();
    if (bytes == 0) continue;
    parts_.copies->to_device(slot.subspan(static_cast<size_t>(own.begin) * width(), bytes),
                             source.first(bytes));
    source = source.subspan(bytes);
  }
}

void Prefetcher::gather(const Placed& placed) {
  const FlatLayout& flat = layout(placed.unit);
  const std::span<std::byte> slot = parts_.ring->filling(placed, version_);
  Communicator::Segments segments;
  for (Segment segment : kSegments) {
    const ElementRange whole = flat.segment(segment);
    if (whole.elements == 0) continue;
    segments.push_back(slot.subspan(static_cast<size_t>(whole.begin) * width(),
                                    static_cast<size_t>(whole.elements) * width()));
  }
  parts_.shards->all_gather(std::move(segments), {"parameters", placed.unit}).wait();
  parts_.ring->end_fill(placed, version_);
}

}  // namespace longshore
