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

void InputOffload::save(UnitId unit, const CarryStore& carry, int32_t micro_batches) {
  const auto copy = [&](Places places) {
    for (int32_t i = 0; i < micro_batches; ++i) {
      const std::span<std::byte> home = places[static_cast<size_t>(i)];
      copies_->to_host(home, carry.saved_bytes(unit, i).first(home.size()));
    }
    copies_->finish();
  };
  if (drives_) {
    drives_->save(unit, micro_batches, copy);
  } else {
    copy(places_.at(static_cast<size_t>(unit.value)));
  }
}

void InputOffload::load(UnitId unit, CarryStore& carry, int32_t micro_batches) {
  const auto copy = [&](Places places) {
    for (int32_t i = 0; i < micro_batches; ++i) {
      const std::span<const std::byte> home = places[static_cast<size_t>(i)];
      copies_->to_device(carry.loaded_bytes(unit, i).first(home.size()), home);
    }
    copies_->finish();
  };
  if (drives_) {
    drives_->load(unit, micro_batches, copy);
  } else {
    copy(places_.at(static_cast<size_t>(unit.value)));
  }
}

Bytes InputOffload::host_bytes() const {
  return drives_ ? drives_->host_bytes() : arena_->size_bytes();
}

}  // namespace longshore
