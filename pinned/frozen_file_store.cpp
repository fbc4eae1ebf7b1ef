#include "pinned/frozen_file_store.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/hash.h"

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

// Returns the bytes of `elements` of the whole flat parameter in one rank's shard.
Bytes shard_bytes(const FlatLayout& layout, int64_t elements, const StateOptions& options) {
  return elements / layout.shard_factor() * width_of(options.compute);
}

}  // namespace

class FrozenFileStore::Parameters final : public ParameterLease {
 public:
  // The unit holds the slot, which its destructor frees.
  Parameters(FrozenFileStore* store, UnitId unit, ParameterSlot slot,
             std::span<const std::byte> bytes)
      : store_(store), unit_(unit), slot_(slot), bytes_(bytes) {}
  ~Parameters() override { store_->owners_.free(slot_, unit_); }
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  FrozenFileStore* store_;
  UnitId unit_;
  ParameterSlot slot_;
  std::span<const std::byte> bytes_;
};

FrozenFileStore::FrozenFileStore(const ModelSpec& model, const std::vector<FlatLayout>& layouts,
                                 const StateOptions& options, Rank shard, bool register_with_gpus,
                                 const FrozenSource* files, WorkerPool* pool)
    : trained_layouts_(trained_parts(layouts)),
      trained_(trained_layouts_, options, register_with_gpus, pool),
      files_(files),
      pool_(pool),
      arena_(planned_slot_bytes(layouts, options), register_with_gpus, *pool),
      owners_("parameter slot", kSlots) {
  LONGSHORE_CHECK(files != nullptr && model.units.size() == layouts.size());
  const size_t slot_bytes = arena_.bytes().size() / kSlots;
  for (size_t i = 0; i < kSlots; ++i) {
    slots_.push_back(arena_.bytes().subspan(i * slot_bytes, slot_bytes));
  }
  for (size_t u = 0; u < layouts.size(); ++u) {
    const FlatLayout& layout = layouts[u];
    Unit unit;
    unit.trained_bytes = shard_bytes(layout, layout.trainable_elements(), options);
    unit.frozen_bytes = shard_bytes(layout, layout.segment(Segment::kFrozen).elements, options);
    for (const ShardPiece& piece : layout.pieces(shard)) {
      if (piece.segment != Segment::kFrozen) continue;
      const ParamSpec& parameter =
          model.units[u].parameters.at(static_cast<size_t>(piece.parameter));
      for (int64_t done = 0; done < piece.elements; done += kChunkElements) {
        unit.chunks.push_back({.name = parameter.name,
                               .begin = piece.parameter_begin + done,
                               .elements = std::min(kChunkElements, piece.elements - done),
                               .place = piece.shard_begin + done});
      }
    }
    unit.sums = std::vector<std::atomic<uint64_t>>(unit.chunks.size());
    units_.push_back(std::move(unit));
  }
}

FrozenFileStore::~FrozenFileStore() = default;

Bytes FrozenFileStore::planned_trained_bytes(const std::vector<FlatLayout>& layouts,
                                             const StateOptions& options) {
  return PinnedStore::planned_bytes(trained_parts(layouts), options);
}

Bytes FrozenFileStore::planned_slot_bytes(const std::vector<FlatLayout>& layouts,
                                          const StateOptions& options) {
  Bytes largest = 0;
  for (const FlatLayout& layout : layouts) {
    if (layout.segment(Segment::kFrozen).elements == 0) continue;
    largest = std::max(largest, shard_bytes(layout, layout.flat_elements(), options));
  }
  return kSlots * align_up(largest, kSlotAlignment);
}

Bytes FrozenFileStore::planned_bytes(const std::vector<FlatLayout>& layouts,
                                     const StateOptions& options) {
  return planned_trained_bytes(layouts, options) + planned_slot_bytes(layouts, options);
}

FrozenFileStore::Unit& FrozenFileStore::at(UnitId unit) {
  LONGSHORE_CHECK(unit.value >= 0 && unit.value < static_cast<int32_t>(units_.size()))
      << "unit " << unit;
  return units_[static_cast<size_t>(unit.value)];
}

// Fills the frozen part of the slot; padding between parameters is zero, as in host memory.
void FrozenFileStore::fill(Unit& unit, std::span<std::byte> slot) {
  const auto width = static_cast<size_t>(width_of(options().compute));
  const std::span<std::byte> frozen =
      slot.subspan(static_cast<size_t>(unit.trained_bytes), static_cast<size_t>(unit.frozen_bytes));
  size_t end = 0;
  for (const Chunk& chunk : unit.chunks) {
    const size_t begin = static_cast<size_t>(chunk.place) * width;
    std::ranges::fill(frozen.subspan(end, begin - end), std::byte{0});
    end = begin + static_cast<size_t>(chunk.elements) * width;
  }
  std::ranges::fill(frozen.subspan(end), std::byte{0});
  pool_->for_each_block(static_cast<int64_t>(unit.chunks.size()), [&](int64_t block) {
    const auto i = static_cast<size_t>(block);
    const Chunk& chunk = unit.chunks[i];
    read_chunk(chunk, unit.sums[i],
               frozen.subspan(static_cast<size_t>(chunk.place) * width,
                              static_cast<size_t>(chunk.elements) * width));
  });
}

void FrozenFileStore::read_chunk(const Chunk& chunk, std::atomic<uint64_t>& sum,
                                 std::span<std::byte> out) {
  read_bytes_ += files_->read(chunk.name, chunk.begin, options().compute, out);
  const uint64_t found = std::max<uint64_t>(hash64(out), 1);
  uint64_t noted = 0;
  if (sum.compare_exchange_strong(noted, found) || noted == found) return;
  throw DataError(files_->place_of(chunk.name) + ": elements from " + std::to_string(chunk.begin) +
                  " have other values than at the start of the run (checksum); the file changed, "
                  "or its drive returns wrong data");
}

void FrozenFileStore::read_parameters(UnitId id, ParameterSlot slot) {
  Unit& unit = at(id);
  owners_.claim(slot, id);
  try {
    fill(unit, slots_[slot]);
  } catch (...) {
    owners_.free(slot, id);
    throw;
  }
}

std::unique_ptr<ShardStore::ParameterLease> FrozenFileStore::parameters_in(UnitId id,
                                                                           ParameterSlot slot) {
  const Unit& unit = at(id);
  owners_.check(slot, id);
  const std::span<std::byte> memory = slots_[slot];
  if (unit.trained_bytes > 0) {
    const auto trained = trained_.parameters(id);
    LONGSHORE_CHECK(static_cast<Bytes>(trained->bytes().size()) == unit.trained_bytes)
        << "unit " << id;
    std::memcpy(memory.data(), trained->bytes().data(), trained->bytes().size());
  }
  return std::make_unique<Parameters>(
      this, id, slot, memory.first(static_cast<size_t>(unit.trained_bytes + unit.frozen_bytes)));
}

std::unique_ptr<ShardStore::ParameterLease> FrozenFileStore::parameters(UnitId id) {
  if (at(id).frozen_bytes == 0) return trained_.parameters(id);
  const std::optional<ParameterSlot> slot = owners_.claim_any(id);
  LONGSHORE_CHECK(slot) << "all slots of parameters are leased";
  try {
    fill(at(id), slots_[*slot]);
    return parameters_in(id, *slot);
  } catch (...) {
    owners_.free(*slot, id);
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
