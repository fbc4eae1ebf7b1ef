#include "pinned/frozen_file_store.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/bytes.h"
#include "base/errors.h"

namespace longshore {
namespace {

constexpr Bytes kSlotAlignment = 4096;
// Long reads for drives, yet enough of them for every thread.
constexpr int64_t kChunkElements = int64_t{1} << 21;

std::vector<FlatLayout> trained_parts(const std::vector<FlatLayout>& layouts) {
  std::vector<FlatLayout> parts;
  parts.reserve(layouts.size());
  for (const FlatLayout& layout : layouts) parts.push_back(layout.without_frozen());
  return parts;
}

bool is_resident(const FrozenFileStore::Resident& resident, size_t unit) {
  return !resident.empty() && resident.at(unit);
}

Bytes slots_and_residents(const std::vector<FlatLayout>& layouts,
                          const FrozenFileStore::Resident& resident) {
  Bytes sum = FrozenFileStore::planned_slot_bytes(layouts, resident);
  for (size_t u = 0; u < layouts.size(); ++u) {
    if (!is_resident(resident, u)) continue;
    sum += FrozenFileStore::planned_resident_bytes(layouts[u]);
  }
  return sum;
}

}  // namespace

class FrozenFileStore::Parameters final : public ParameterLease {
 public:
  // The unit holds the slot among `owners`, which its destructor frees.
  Parameters(SlotOwners<ParameterSlot>* owners, UnitId unit, ParameterSlot slot,
             std::span<const std::byte> bytes)
      : owners_(owners), unit_(unit), slot_(slot), bytes_(bytes) {}
  ~Parameters() override { owners_->free(slot_, unit_); }
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  SlotOwners<ParameterSlot>* owners_;
  UnitId unit_;
  ParameterSlot slot_;
  std::span<const std::byte> bytes_;
};

FrozenFileStore::FrozenFileStore(const ModelSpec& model, const std::vector<FlatLayout>& layouts,
                                 const Resident& resident, const StateOptions& options, Rank shard,
                                 bool register_with_gpus, const FrozenSource* files,
                                 WorkerPool* pool)
    : trained_layouts_(trained_parts(layouts)),
      trained_(trained_layouts_, options, register_with_gpus, pool),
      files_(files),
      arena_(slots_and_residents(layouts, resident), register_with_gpus, *pool),
      owners_("parameter slot", kSlots),
      places_("place of a resident unit", static_cast<int32_t>(layouts.size())) {
  LONGSHORE_CHECK(files != nullptr && model.units.size() == layouts.size());
  std::span<std::byte> rest = arena_.bytes();
  const auto take = [&rest](Bytes bytes) {
    const std::span<std::byte> taken = rest.first(static_cast<size_t>(bytes));
    rest = rest.subspan(taken.size());
    return taken;
  };
  const Bytes slot_bytes = planned_slot_bytes(layouts, resident) / kSlots;
  for (int32_t i = 0; i < kSlots; ++i) slots_.push_back(take(slot_bytes));
  reads_.resize(kSlots);
  for (size_t u = 0; u < layouts.size(); ++u) {
    make_unit(model.units[u], layouts[u], shard);
    if (is_resident(resident, u)) {
      units_.back().resident = take(planned_resident_bytes(layouts[u]));
    }
  }
}

void FrozenFileStore::make_unit(const UnitSpec& spec, const FlatLayout& layout, Rank shard) {
  Unit unit;
  unit.frozen_bytes = layout.shard_bytes(Segment::kFrozen);
  unit.trained_bytes = layout.shard_bytes() - unit.frozen_bytes;
  const Bytes most = kChunkElements * width_of(options().compute);
  for (const FrozenPiece& piece : layout.frozen_pieces(shard)) {
    const ParamSpec& parameter = spec.parameters.at(static_cast<size_t>(piece.parameter));
    // Chunks end at fixed bytes of the parameter, so that any number of ranks reads the same.
    for (Bytes done = 0, count = 0; done < piece.bytes; done += count) {
      const Bytes begin = piece.parameter_begin + done;
      count = std::min(most - begin % most, piece.bytes - done);
      unit.chunks.push_back({.name = parameter.name,
                             .type = piece.type,
                             .begin = begin,
                             .bytes = count,
                             .place = piece.shard_begin + done});
    }
  }
  units_.push_back(std::move(unit));
}

FrozenFileStore::~FrozenFileStore() = default;

Bytes FrozenFileStore::planned_slot_bytes(const std::vector<FlatLayout>& layouts,
                                          const Resident& resident) {
  Bytes largest = 0;
  for (size_t u = 0; u < layouts.size(); ++u) {
    if (is_resident(resident, u)) continue;
    largest = std::max(largest, planned_resident_bytes(layouts[u]));
  }
  return kSlots * largest;
}

Bytes FrozenFileStore::planned_resident_bytes(const FlatLayout& layout) {
  if (layout.shard_bytes(Segment::kFrozen) == 0) return 0;
  return align_up(layout.shard_bytes(), kSlotAlignment);
}

// Begins to fill the frozen part of the slot; padding between parameters is zero, as in host
// memory.
std::shared_ptr<ReadingThreads::Reads> FrozenFileStore::begin_filling(const Unit& unit,
                                                                      std::span<std::byte> slot) {
  const std::span<std::byte> frozen =
      slot.subspan(static_cast<size_t>(unit.trained_bytes), static_cast<size_t>(unit.frozen_bytes));
  size_t end = 0;
  for (const Chunk& chunk : unit.chunks) {
    const auto begin = static_cast<size_t>(chunk.place);
    std::ranges::fill(frozen.subspan(end, begin - end), std::byte{0});
    end = begin + static_cast<size_t>(chunk.bytes);
  }
  std::ranges::fill(frozen.subspan(end), std::byte{0});
  return threads_.begin(std::ssize(unit.chunks), [this, &unit, frozen](int64_t i) {
    const Chunk& chunk = unit.chunks[static_cast<size_t>(i)];
    read_bytes_ += files_->read(
        chunk.name, chunk.type, chunk.begin,
        frozen.subspan(static_cast<size_t>(chunk.place), static_cast<size_t>(chunk.bytes)));
  });
}

void FrozenFileStore::read_parameters(UnitId id, ParameterSlot slot) {
  Unit& unit = of_unit(units_, id);
  LONGSHORE_CHECK(unit.resident.empty()) << "unit " << id << " is resident";
  owners_.claim(slot, id);
  reads_[slot] = begin_filling(unit, slots_[slot]);
}

// Puts the trained parameters of now before the frozen ones in `memory`.
std::span<const std::byte> FrozenFileStore::joined(UnitId id, std::span<std::byte> memory) {
  const Unit& unit = of_unit(units_, id);
  if (unit.trained_bytes > 0) {
    const auto trained = trained_.parameters(id);
    LONGSHORE_CHECK(static_cast<Bytes>(trained->bytes().size()) == unit.trained_bytes)
        << "unit " << id;
    std::memcpy(memory.data(), trained->bytes().data(), trained->bytes().size());
  }
  return memory.first(static_cast<size_t>(unit.trained_bytes + unit.frozen_bytes));
}

std::unique_ptr<ShardStore::ParameterLease> FrozenFileStore::parameters_in(UnitId id,
                                                                           ParameterSlot slot) {
  owners_.check(slot, id);
  try {
    threads_.finish(*reads_[slot]);
    return std::make_unique<Parameters>(&owners_, id, slot, joined(id, slots_[slot]));
  } catch (...) {
    owners_.free(slot, id);
    throw;
  }
}

std::unique_ptr<ShardStore::ParameterLease> FrozenFileStore::parameters(UnitId id) {
  Unit& unit = of_unit(units_, id);
  if (unit.frozen_bytes == 0) return trained_.parameters(id);
  if (!unit.resident.empty()) return resident_parameters(id);
  const std::optional<ParameterSlot> slot = owners_.claim_any(id);
  LONGSHORE_CHECK(slot) << "all slots of parameters are leased";
  reads_[*slot] = begin_filling(unit, slots_[*slot]);
  return parameters_in(id, *slot);
}

std::unique_ptr<ShardStore::ParameterLease> FrozenFileStore::resident_parameters(UnitId id) {
  Unit& unit = of_unit(units_, id);
  const ParameterSlot place(id.value);
  places_.claim(place, id);
  try {
    if (!unit.resident_read) {
      threads_.finish(*begin_filling(unit, unit.resident));
      for (const Chunk& chunk : unit.chunks) files_->release(chunk.name);
      unit.resident_read = true;
    }
    return std::make_unique<Parameters>(&places_, id, place, joined(id, unit.resident));
  } catch (...) {
    places_.free(place, id);
    throw;
  }
}

void FrozenFileStore::read_state(UnitId unit, StateSlot) {
  LONGSHORE_CHECK(false) << "the state of unit " << unit << " is in host memory";
}

std::unique_ptr<ShardStore::StateLease> FrozenFileStore::state_in(UnitId unit, StateSlot) {
  LONGSHORE_CHECK(false) << "the state of unit " << unit << " is in host memory";
  return nullptr;
}

void FrozenFileStore::write_state(UnitId unit, StateSlot) {
  LONGSHORE_CHECK(false) << "the state of unit " << unit << " is in host memory";
}

void FrozenFileStore::pass_parameters(UnitId unit, StateSlot, ParameterSlot) {
  LONGSHORE_CHECK(false) << "the state of unit " << unit << " is in host memory";
}

}  // namespace longshore
