#include "pinned/host_inputs.h"

#include <numeric>

#include "base/errors.h"

namespace longshore {

HostInputs::HostInputs(const std::vector<Bytes>& unit_bytes, int64_t micro_batches,
                       bool register_with_gpus, WorkerPool& pool)
    : arena_(std::accumulate(unit_bytes.begin(), unit_bytes.end(), Bytes{0}), register_with_gpus,
             pool) {
  std::span<std::byte> rest = arena_.bytes();
  for (Bytes bytes : unit_bytes) {
    LONGSHORE_CHECK(bytes % micro_batches == 0) << bytes << " in " << micro_batches << " parts";
    const auto part = static_cast<size_t>(bytes / micro_batches);
    std::vector<std::span<std::byte>>& places = places_.emplace_back();
    for (int64_t i = 0; i < micro_batches && part > 0; ++i) {
      places.push_back(rest.first(part));
      rest = rest.subspan(part);
    }
  }
}

std::vector<std::span<std::byte>> HostInputs::places(UnitId unit,
                                                     std::optional<StagingSlot> slot) const {
  LONGSHORE_CHECK(!slot.has_value()) << "the input of unit " << unit << " passes no slot";
  return places_.at(static_cast<size_t>(unit.value));
}

}  // namespace longshore
