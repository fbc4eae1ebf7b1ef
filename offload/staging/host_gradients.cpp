#include "offload/staging/host_gradients.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {
namespace {

// Slots begin at pages, as slabs do.
constexpr Bytes kPlaceAlignment = 4096;

Bytes gradient_bytes(const FlatLayout& layout, DType dtype) {
  return layout.trainable_elements() / layout.shard_factor() * width_of(dtype);
}

}  // namespace

HostGradients::HostGradients(const std::vector<FlatLayout>& layouts,
                             const HostGradientsOptions& options, bool register_with_gpus,
                             WorkerPool& pool)
    : options_(options),
      arena_(planned_bytes(layouts, options), register_with_gpus, pool),
      ring_("host gradient slot", options.ring) {
  Bytes cursor = 0;
  for (const FlatLayout& layout : layouts) {
    Unit& unit =
        units_.emplace_back(Unit{.begin = cursor, .bytes = gradient_bytes(layout, options.dtype)});
    cursor += align_up(unit.bytes, kPlaceAlignment);
    Bytes end = 0;
    for (const Segment segment : kSegments) {
      if (segment == Segment::kFrozen) continue;
      const Bytes own = layout.shard_elements(segment) * width_of(options.dtype);
      unit.segments[static_cast<size_t>(segment)] = {end, own};
      end += own;
    }
    LONGSHORE_CHECK(end == unit.bytes) << end << " bytes in segments, " << unit.bytes << " in all";
  }
}

Bytes HostGradients::planned_bytes(const std::vector<FlatLayout>& layouts,
                                   const HostGradientsOptions& options) {
  Bytes sum = 0;
  Bytes largest = 0;
  for (const FlatLayout& layout : layouts) {
    const Bytes place = align_up(gradient_bytes(layout, options.dtype), kPlaceAlignment);
    sum += place;
    largest = std::max(largest, place);
  }
  return options.ring > 0 ? options.ring * largest : sum;
}

const HostGradients::Unit& HostGradients::at(UnitId unit) const {
  LONGSHORE_CHECK(unit.value >= 0 && unit.value < static_cast<int32_t>(units_.size()))
      << "unit " << unit;
  return units_[static_cast<size_t>(unit.value)];
}

std::span<std::byte> HostGradients::gradient(UnitId id) {
  const Unit& unit = at(id);
  Bytes begin = unit.begin;
  if (options_.ring > 0) {
    const std::optional<HostGradientSlot> slot = ring_.slot_of(id);
    LONGSHORE_CHECK(slot.has_value())
        << "the gradient of unit " << id << " has no host gradient slot";
    begin = arena_.size_bytes() / options_.ring * slot->value;
  }
  return arena_.bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(unit.bytes));
}

std::span<std::byte> HostGradients::segment(UnitId unit, Segment segment) {
  const auto [begin, bytes] = at(unit).segments.at(static_cast<size_t>(segment));
  return gradient(unit).subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
}

}  // namespace longshore
