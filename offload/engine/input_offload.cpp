#include "offload/engine/input_offload.h"

#include <span>
#include <vector>

namespace longshore {

void InputOffload::save(UnitId unit, std::optional<int32_t> staging, const CarryStore& carry,
                        int32_t micro_batches) {
  const std::vector<std::span<std::byte>> host = tier_->places(unit, staging);
  for (int32_t i = 0; i < micro_batches; ++i) {
    const std::span<std::byte> place = host.at(static_cast<size_t>(i));
    copies_->to_host(place, carry.saved_bytes(unit, i).first(place.size()));
  }
  copies_->finish();
}

void InputOffload::load(UnitId unit, std::optional<int32_t> staging, CarryStore& carry,
                        int32_t micro_batches) {
  const std::vector<std::span<std::byte>> host = tier_->places(unit, staging);
  for (int32_t i = 0; i < micro_batches; ++i) {
    const std::span<const std::byte> place = host.at(static_cast<size_t>(i));
    copies_->to_device(carry.loaded_bytes(unit, i).first(place.size()), place);
  }
  copies_->finish();
}

}  // namespace longshore
