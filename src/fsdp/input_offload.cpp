#include "fsdp/input_offload.h"

#include <numeric>

#include "base/errors.h"

namespace longshore {

InputOffload::InputOffload(const std::vector<Bytes>& unit_bytes, int64_t micro_batches,
                           bool register_with_gpus, CopyEngine* copies, WorkerPool& pool)
    : copies_(copies) {
  arena_.emplace(std::accumulate(unit_bytes.begin(), unit_bytes.end(), Bytes{0}),
                 register_with_gpus, pool);
  std::span<std::byte> rest = arena_->bytes();
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

InputOffload::InputOffload(std::unique_ptr<NvmeInputs> drives, CopyEngine* copies)
    : copies_(copies), drives_(std::move(drives)) {}

std::vector<std::span<std::byte>> InputOffload::places(UnitId unit,
                                                       std::optional<int32_t> staging) const {
  LONGSHORE_CHECK(staging.has_value() == (drives_ != nullptr)) << "unit " << unit;
  return drives_ ? drives_->places(unit, *staging) : places_.at(static_cast<size_t>(unit.value));
}

void InputOffload::save(UnitId unit, std::optional<int32_t> staging, const CarryStore& carry,
                        int32_t micro_batches) {
  const std::vector<std::span<std::byte>> home = places(unit, staging);
  for (int32_t i = 0; i < micro_batches; ++i) {
    const std::span<std::byte> place = home.at(static_cast<size_t>(i));
    copies_->to_host(place, carry.saved_bytes(unit, i).first(place.size()));
  }
  copies_->finish();
}

void InputOffload::load(UnitId unit, std::optional<int32_t> staging, CarryStore& carry,
                        int32_t micro_batches) {
  const std::vector<std::span<std::byte>> home = places(unit, staging);
  for (int32_t i = 0; i < micro_batches; ++i) {
    const std::span<const std::byte> place = home.at(static_cast<size_t>(i));
    copies_->to_device(carry.loaded_bytes(unit, i).first(place.size()), place);
  }
  copies_->finish();
}

Bytes InputOffload::host_bytes() const {
  return drives_ ? drives_->host_bytes() : arena_->size_bytes();
}

}  // namespace longshore
