#include "offload/staging/gradient_home.h"

#include "base/errors.h"

namespace longshore {
namespace {

constexpr Bytes kPlaceAlignment = 4096;

Bytes gradient_bytes(const FlatLayout& layout, DType dtype) {
  return layout.trainable_elements() / layout.shard_factor() * width_of(dtype);
}

}  // namespace

GradientHome::GradientHome(const std::vector<FlatLayout>& layouts, DType dtype,
                           bool register_with_gpus, WorkerPool& pool)
    : dtype_(dtype), arena_(planned_bytes(layouts, dtype), register_with_gpus, pool) {
  std::span<std::byte> rest = arena_.bytes();
  for (const FlatLayout& layout : layouts) {
    const Bytes bytes = gradient_bytes(layout, dtype);
    Unit& unit = units_.emplace_back(Unit{.place = rest.first(static_cast<size_t>(bytes))});
    rest = rest.subspan(static_cast<size_t>(align_up(bytes, kPlaceAlignment)));
    Bytes end = 0;
    for (const Segment segment : kSegments) {
      if (segment == Segment::kFrozen) continue;
      const Bytes own = layout.shard_elements(segment) * width_of(dtype);
      unit.segments[static_cast<size_t>(segment)] = {end, own};
      end += own;
    }
    LONGSHORE_CHECK(end == bytes) << end << " bytes in segments, " << bytes << " in all";
  }
}

Bytes GradientHome::planned_bytes(const std::vector<FlatLayout>& layouts, DType dtype) {
  Bytes sum = 0;
  for (const FlatLayout& layout : layouts) {
    sum += align_up(gradient_bytes(layout, dtype), kPlaceAlignment);
  }
  return sum;
}

const GradientHome::Unit& GradientHome::at(UnitId unit) const {
  LONGSHORE_CHECK(unit.value >= 0 && unit.value < static_cast<int32_t>(units_.size()))
      << "unit " << unit;
  return units_[static_cast<size_t>(unit.value)];
}

std::span<std::byte> GradientHome::gradient(UnitId unit) {
  return at(unit).place;
}

std::span<std::byte> GradientHome::segment(UnitId unit, Segment segment) {
  const auto [begin, bytes] = at(unit).segments.at(static_cast<size_t>(segment));
  return gradient(unit).subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
}

}  // namespace longshore
